import numpy as np

from model.chat.renderer import Rendered
from model.loss import IGNORE
from tasks.training.chats import pack


def test_packed_chats_train_their_own_answers_alone():
    chats = [
        Rendered([5, 6, 7], [False, True, True]),
        Rendered([8, 9], [False, True]),
        Rendered([1, 2, 3, 4, 5], [False, False, True, False, True]),
    ]
    packed = pack(chats, length=6, pad_id=0, name="x")
    batch = packed.take(np.arange(packed.rows))
    assert batch.tokens_BT.tolist() == [[1, 2, 3, 4, 5, 0], [5, 6, 7, 8, 9, 0]]
    assert batch.start_BT.tolist() == [[0, 0, 0, 0, 0, 5], [0, 0, 0, 3, 3, 5]]
    none = IGNORE
    assert batch.target_BT.tolist() == [[none, 3, none, 5, none, none], [6, 7, none, 9, none, none]]
