"""Change one value in a YAML text and leave every other byte, comments and number formats too, as it is."""

from typing import Any

import yaml

from pipeline.errors import UserError


def set_value(text: str, keys: list[str], value: Any) -> str:
    """``text`` with the value at the path ``keys`` replaced, or added where the path is not there yet."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    for depth, key in enumerate(keys):
        child = _child(node, key)
        if child is None:
            return _add(text, node, _flow(keys[depth:], value))
        node = child
        if depth + 1 < len(keys) and _is_null(node):
            return _replace(text, node, f"{{{_flow(keys[depth + 1 :], value)}}}")
    if not isinstance(node, yaml.ScalarNode) and not node.flow_style:
        raise UserError(f"{'.'.join(keys)} is a block of several lines: change it in the file")
    return _replace(text, node, _dump(value))


def _child(node: yaml.Node, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{key!r} cannot be set below a single value: {node.value!r}")
    return next((value for name, value in node.value if name.value == key), None)


def _is_null(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def _flow(keys: list[str], value: Any) -> str:
    """``a: {b: value}``"""
    inner = _dump(value) if len(keys) == 1 else f"{{{_flow(keys[1:], value)}}}"
    return f"{keys[0]}: {inner}"


def _dump(value: Any) -> str:
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6).strip()
    return text.removesuffix("...").strip()


def _replace(text: str, node: yaml.Node, new: str) -> str:
    start, end = node.start_mark.index, node.end_mark.index
    space = " " if start == end else ""  # an empty value starts right behind its colon
    return text[:start] + space + new + text[end:]


def _add(text: str, mapping: yaml.MappingNode, entry: str) -> str:
    if mapping.flow_style:
        close = mapping.end_mark.index - 1
        separator = ", " if mapping.value else ""
        return text[:close].rstrip() + separator + entry + text[close:]
    line_end = text.find("\n", _end(mapping))
    line_end = len(text) if line_end < 0 else line_end
    return text[:line_end] + "\n" + " " * mapping.start_mark.column + entry + text[line_end:]


def _end(node: yaml.Node) -> int:
    """Where the last character of a node stands; a block's own end mark is behind what follows it."""
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return node.end_mark.index
    last = node.value[-1]
    return _end(last[1] if isinstance(last, tuple) else last)
