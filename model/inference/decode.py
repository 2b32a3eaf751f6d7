"""Passes in which every request reads one token, on buffers of fixed shapes.

A pass like that is hundreds of small operations, and on a GPU starting them takes longer than running them.
So requests are padded to a power of two, and their pages too; what a pass needs to know goes to the device in
one copy, and on CUDA the pass itself is recorded once for each padded shape and then replayed (CUDA graphs).
Without graphs the same operations run one by one and give the same bits.

Rows behind the last request are copies of the first one: they store what it stores, where it stores it.

On a CPU a small model spends most of a pass between torch's operations; "native" does the whole pass in one
function of C++ (``native/``), without padding.

R requests, B rows with padding, P pages of a row, D hidden, V vocabulary.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch

from model.attention.cache import PagedCache
from model.attention.mla import AttentionOptions
from model.capture import without_collection
from model.inference.native.binding import NativePass
from model.inference.native.build import library
from model.inference.sampler import log_probabilities
from model.inference.scheduler import Reading
from model.transformer import Transformer

DecodeMode = Literal["plain", "padded", "graphs", "native"]
LEAST_PAGES = 16  # of a row: fewer shapes for short requests
TOKEN, SLOT, PAGES = 0, 1, 2  # columns of the input


def decode_mode(mode: DecodeMode | None, device: torch.device) -> DecodeMode:
    """The way to decode on a device. Raises ``ValueError`` for one that is not to be had there."""
    if mode is None:
        return "graphs" if device.type == "cuda" else "plain"
    if mode not in get_args(DecodeMode):
        raise ValueError(f"decode cannot be {mode!r}: use one of {', '.join(get_args(DecodeMode))}")
    if mode == "graphs" and device.type != "cuda":
        raise ValueError(f"decode cannot be 'graphs' on {device.type}: graphs need CUDA")
    if mode == "native":
        library()
    return mode


@dataclass(frozen=True)
class Decoded:
    """What a pass gives. The tensors are buffers: the next pass of the same shape overwrites them."""

    logits_RV: torch.Tensor
    logprob_RV: torch.Tensor
    best_2R: torch.Tensor  # float64, the most probable token of each request and its log-probability


class Decoder:
    def __init__(
        self, model: Transformer, cache: PagedCache, options: AttentionOptions, mode: DecodeMode, most: int
    ):
        """``most`` requests in a pass. Raises ``ValueError`` where "native" cannot run."""
        self._model, self._cache, self._options, self._most = model, cache, options, most
        self._native = NativePass(model, cache, options) if mode == "native" else None
        self._graphs, self._padded = mode == "graphs", mode != "native"
        self._pool = torch.cuda.graph_pool_handle() if self._graphs else None
        self._shapes: dict[tuple[int, int], _Shape] = {}

    @property
    def recorded(self) -> int:
        """Shapes that are replayed."""
        return sum(shape.graph is not None for shape in self._shapes.values())

    def takes(self, readings: list[Reading]) -> bool:
        """Whether all of them read their last token and are sampled behind it, and nothing else."""
        return len(readings) <= self._most and all(
            reading.count == 1 == reading.sequence.unread
            and not reading.drafts
            and reading.sequence.samples
            and not reading.sequence.wants_prompt
            for reading in readings
        )

    def read(self, readings: list[Reading]) -> Decoded:
        """One pass; the readings' latents are in the cache afterwards."""
        rows = _power(len(readings)) if self._padded else len(readings)
        pages = max(LEAST_PAGES, _power(max(len(reading.sequence.pages) for reading in readings)))
        shape = self._shapes.get((rows, pages))
        if shape is None:
            shape = self._shapes[rows, pages] = _Shape(rows, pages, self._device)
        shape.fill(readings)
        # Not kept: a decoder that holds its own method holds the cache until the garbage collector comes.
        read = self._native or self._pass
        if self._graphs and shape.graph is None and shape.recordable:
            shape.record(read, self._pool)
        logits_BV, logprob_BV, best_2B = shape.run(read)
        R = len(readings)
        return Decoded(logits_BV[:R], logprob_BV[:R], best_2B[:, :R])

    @property
    def _device(self) -> torch.device:
        return self._model.embed.weight.device

    def _pass(self, input_BW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Logits and log-probabilities (B, V), and each row's best token with its log-probability (2, B)."""
        view = self._model.next_view(self._cache, input_BW[:, PAGES:], input_BW[:, SLOT])
        hidden_BD = self._model.read(input_BW[:, TOKEN], view, self._options)
        logits_BV = self._model.logits(hidden_BD)
        logprob_BV = log_probabilities(logits_BV)
        best_B1 = logits_BV.argmax(-1, keepdim=True)
        best_2B = torch.cat([best_B1.double(), logprob_BV.gather(1, best_B1).double()], 1).t().contiguous()
        return logits_BV, logprob_BV, best_2B


class _Shape:
    """The buffers of one padded shape, and the recorded pass over them."""

    def __init__(self, rows: int, pages: int, device: torch.device):
        cuda = device.type == "cuda"
        self._host_BW = torch.zeros(rows, PAGES + pages, dtype=torch.int64, pin_memory=cuda)
        self._numbers = self._host_BW.numpy()
        self._input_BW = torch.zeros_like(self._host_BW, device=device) if cuda else self._host_BW
        self._pages: list[list[int] | None] = [None] * rows  # what stands in each row
        self._output: tuple[torch.Tensor, ...] = ()
        self.graph: torch.cuda.CUDAGraph | None = None
        self.recordable = cuda

    def fill(self, readings: list[Reading]) -> None:
        """Write a pass into the buffers. Pages change seldom, so only rows with other ones are written."""
        numbers, R = self._numbers, len(readings)
        numbers[:R, TOKEN] = [reading.sequence.ids[-1] for reading in readings]
        numbers[:R, SLOT] = [reading.first for reading in readings]
        for row, reading in enumerate(readings):
            pages = reading.sequence.pages
            if self._pages[row] != pages:
                self._pages[row] = list(pages)
                numbers[row, PAGES : PAGES + len(pages)] = pages
        if R < len(numbers):
            numbers[R:] = numbers[0]
            self._pages[R:] = [None] * (len(numbers) - R)
        if self._input_BW is not self._host_BW:
            # The next ``fill`` comes when this pass's tokens have been read, so the copy is through by then.
            self._input_BW.copy_(self._host_BW, non_blocking=True)

    def run(self, read: Callable[[torch.Tensor], tuple[torch.Tensor, ...]]) -> tuple[torch.Tensor, ...]:
        if self.graph is None:
            return read(self._input_BW)
        self.graph.replay()
        return self._output

    def record(self, read: Callable[[torch.Tensor], tuple[torch.Tensor, ...]], pool) -> None:
        """Record the pass, if nothing in it waits for the device (float32 experts may). It runs beforehand,
        outside of the graph, so that kernels are compiled by then; what it stores is stored again.
        """
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            read(self._input_BW)
            self.recordable = _never_waits(lambda: read(self._input_BW))
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        if self.recordable:
            graph = torch.cuda.CUDAGraph()
            with (
                without_collection(),
                torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
            ):
                self._output = read(self._input_BW)
            self.graph = graph


def _never_waits(run: Callable[[], object]) -> bool:
    """Whether ``run`` gets through without an operation that waits for the device."""
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings(action="ignore"):  # that this mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError as error:
        if "synchroniz" not in str(error):
            raise
        return False
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    return True


def _power(count: int) -> int:
    """The least power of two that is not below ``count``."""
    return 1 << (count - 1).bit_length()
