"""The recognizer's edits, made in the FuncGraph that it has read a description of.

TensorFlow's graphs only grow: an op that was replaced stays in the graph, unread. The executors
and XLA drop what no output needs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf

from . import _saving
from ._trace_describe import (
    BY_NAME,
    FORWARD_OPS,
    FUSED_OPS,
    OUTPUT,
    GraphDef,
    NodeDef,
    are_one_read,
    is_opaque,
    split,
    with_sources,
)

# Set by the library on fused nodes whose output nobody reads who is read (plugin/activations).
_UNREAD = "_nv_norms_unread"


class UnexpectedGraphError(Exception):
    """The recognizer's graph cannot be followed in the FuncGraph; the message says why."""


class Edit:
    """Makes the difference of two GraphDefs, `before` and `after`, in the graph of `before`.

    A node that is in both under one name has one meaning in both, whatever computes it; so what
    reads it may read either, and a fusion that is not wanted is left out by staying with the old.
    """

    def __init__(self, graph: Any, before: GraphDef, after: GraphDef) -> None:
        self._graph = graph
        self._before = {node.name: node for node in before.node}
        self._after = {node.name: node for node in after.node}
        self._forwards = [node for node in after.node if node.op in FORWARD_OPS]
        self._made: dict[str, tf.Operation | None] = {}
        self._changed: dict[str, bool] = {}
        self._left: frozenset[str] = frozenset()

    def fused_node(self, record: dict[str, Any]) -> NodeDef:
        """The fused forward node of a record; where it is left out, its gradients are, too."""
        name, _ = split(record["outputs"][0])
        if record["direction"] == "backward":
            return self._forward_of(name)
        for node in self.fused_nodes(name):
            return node
        raise UnexpectedGraphError(f"no fused op computes {name}")

    def fused_nodes(self, output: str) -> Iterator[NodeDef]:
        """The fused forward nodes of an output: more than one where it is a sum of norms."""
        name, _ = split(output)
        for node in self._forwards:
            if node.name == name or node.name.startswith(f"{name}/{node.op}"):
                yield node

    def fused_ops(self, output: str) -> list[tf.Operation]:
        """Their ops, once applied, without those left out."""
        made = [self._made.get(node.name) for node in self.fused_nodes(output)]
        return [op for op in made if op is not None]

    def unread(self) -> list[str]:
        """The fused nodes that nobody reads in earnest; what computed them may stay."""
        return [name for name, node in self._after.items() if _UNREAD in node.attr]

    def changes_ops_by_name(self) -> bool:
        """Whether a fused op that a program calls gets other types: it takes in Casts."""
        return any(
            node.op in FUSED_OPS and BY_NAME in node.attr and self._is_changed(name)
            for name, node in self._after.items()
        )

    def _forward_of(self, name: str) -> NodeDef:
        """The forward of the gradient op that computes (part of) the output of node `name`."""
        waiting, seen = [name], {name}
        for name in waiting:  # outwards, the nearest first
            node = self._after[name]
            sources = [split(i)[0] for i in node.input]
            if node.op in FUSED_OPS - FORWARD_OPS:  # whose last input is rstd
                rstd = [i for i in node.input if not i.startswith("^")][-1]
                return self._after[split(rstd)[0]]
            new = [s for s in sources if s in self._after and s not in seen and self._is_changed(s)]
            seen.update(new)
            waiting += new
        raise UnexpectedGraphError(f"no fused op computes {waiting[0]}")

    def apply(self, left: Iterable[str] = ()) -> int:
        """Edits the graph; the fused nodes in `left`, and what needs them, are left out.

        Returns the number of fused ops that were made. If it raises, the graph computes what it
        did before.
        """
        self._left = frozenset(left)
        graph = self._graph
        with graph.as_default(), tf.name_scope(""), tf.control_dependencies(None):
            for name in self._after:
                self._is_changed(name) and self._make(name)
            inputs, controls = self._updates()
        done: list[tuple[tf.Operation, int, tf.Tensor]] = []
        waited: list[tuple[tf.Operation, list[tf.Operation]]] = []
        try:
            for op, index, tensor in inputs:
                old = op.inputs[index]
                op._update_input(index, tensor)
                done.append((op, index, old))
            for op, wanted in controls:
                waited.append((op, list(op.control_inputs)))
                _set_controls(op, wanted)
            if self._left:
                for op, index, tensor in self._readers_beside():
                    done.append((op, index, op.inputs[index]))
                    op._update_input(index, tensor)
            self._replace_outputs()
        except BaseException:
            for op, index, old in reversed(done):
                op._update_input(index, old)
            for op, old_controls in waited:
                _set_controls(op, old_controls)
            raise
        return sum(op is not None and op.type in FUSED_OPS for op in self._made.values())

    def _is_changed(self, name: str) -> bool:
        """Whether the node is new, or computed by another op than before."""
        if name not in self._changed:
            self._changed[name] = self._differs(name)
        return self._changed[name]

    def _differs(self, name: str) -> bool:
        old, new = self._before.get(name), self._after[name]
        if old is not None and old.op == new.op == "Placeholder":
            return False  # another one would be no argument
        if old is None or old.op != new.op or old.attr != new.attr:
            return True
        if old.input == new.input or OUTPUT in name:
            return False
        return self._reads_another_shape(name)

    def _reads_another_shape(self, name: str) -> bool:
        """Whether an input has a shape that TensorFlow does not let an op that is there read: of
        x * scale, with `scale` in the place of `scale * rsqrt`. Then another op of that kind does.
        """
        op = self._graph.get_operation_by_name(name)
        wanted = [split(i) for i in self._after[name].input if not i.startswith("^")]
        if len(wanted) != len(op.inputs) or op.op_def.is_stateful or is_opaque(op):
            return False
        shapes = [self._shape(*place) for place in wanted]
        return any(
            shape is None or not shape.is_compatible_with(now.shape)
            for shape, now in zip(shapes, op.inputs, strict=True)
        )

    def _shape(self, name: str, port: int) -> tf.TensorShape | None:
        """Of an input in the edited graph, as far as that can be told before it is made.

        None if it may be any: of a Reshape that was not there before.
        """
        old, new = self._before.get(name), self._after[name]
        if old is not None and old.op == new.op:
            return self._old_tensor(name, port).shape
        if new.op in FORWARD_OPS and port == 0:  # y has the shape of x
            return self._shape(*split(new.input[0]))
        if new.op in FUSED_OPS - FORWARD_OPS and port < new.attr["num_dx"].i:  # and so has dx
            return self._shape(*split(new.input[1]))
        if new.op == "Identity":  # which hands on what takes an op's place
            return self._shape(*split(new.input[0]))
        if old is None and new.op == "Reshape":
            return None
        return tf.TensorShape(None)

    def _make(self, name: str) -> tf.Operation | None:
        """The op of a changed node; None if it needs what is left out."""
        if name not in self._made:
            self._made[name] = None  # an edge back to it would be a cycle
            self._made[name] = self._create(self._after[name])
        return self._made[name]

    def _create(self, node: NodeDef) -> tf.Operation | None:
        if node.name in self._left:
            return None
        inputs, controls = [], []
        for source, port in map(split, node.input):
            if port < 0:
                controls.append(source)
                continue
            tensor = self._tensor(source, port)
            if tensor is None:
                return None
            inputs.append(tensor)
        waits = [self._control(source) for source in controls]
        if None in waits:
            return None
        graph = self._graph
        attributes = dict(node.attr)
        by_name = attributes.pop(BY_NAME, None)
        name = graph.unique_name(node.name)
        old = self._old(node.name)
        was = old.outputs[0] if old is not None and old.outputs else None
        # With the op, not after it: another thread may ask for the graph meanwhile.
        if node.op in FUSED_OPS and by_name is None:
            attributes[_saving.MARK] = tf.compat.v1.AttrValue(b=True)
        if was is not None:
            kind = was.dtype.as_datatype_enum
            attributes[_saving.REPLACED] = tf.compat.v1.AttrValue(s=was.op.name.encode())
            attributes[_saving.REPLACED_TYPE] = tf.compat.v1.AttrValue(type=kind)
            attributes[_saving.OWN_NAME] = tf.compat.v1.AttrValue(s=name.encode())
        op = graph._create_op_internal(
            node.op,
            inputs,
            name=f"{name}/",
            attrs=attributes,
            compute_device=False,
        )
        if node.device:
            op._set_device_from_string(node.device)
        op._add_control_inputs(waits)
        # A gradient that only Reshapes read may come in another shape.
        if was is not None and op.outputs[0].shape.is_compatible_with(was.shape):
            op.outputs[0].set_shape(was.shape)
        return op

    def _old(self, name: str) -> tf.Operation | None:
        return self._graph.get_operation_by_name(name) if name in self._before else None

    def _tensor(self, name: str, port: int) -> tf.Tensor | None:
        """The tensor of that name in the edited graph; None if it needs what is left out."""
        if name in self._after and self._is_changed(name):
            op = self._make(name)
            if op is not None:
                return op.outputs[port]
            if port > 0:
                return None
        return self._old_tensor(name, port) if name in self._before else None

    def _old_tensor(self, name: str, port: int) -> tf.Tensor:
        """That of a node of the graph that describe() gave, as it was."""
        source, mark, output = name.rpartition(OUTPUT)
        if mark:
            return self._graph.get_operation_by_name(source).outputs[int(output)]
        return self._graph.get_operation_by_name(name).outputs[port]

    def _control(self, name: str) -> tf.Operation | None:
        """The op of that name in the edited graph; None if it is left out."""
        name = name.rpartition(OUTPUT)[0] or name
        if name in self._after and self._is_changed(name):
            op = self._make(name)
            if op is not None:
                return op
        return self._old(name)

    def _updates(
        self,
    ) -> tuple[
        list[tuple[tf.Operation, int, tf.Tensor]], list[tuple[tf.Operation, list[tf.Operation]]]
    ]:
        """What unchanged nodes shall read and wait for instead of what they do."""
        inputs, controls = [], []
        for name, node in self._after.items():
            if OUTPUT in name or self._is_changed(name):
                continue
            op = self._old(name)
            assert op is not None
            if self._reads_the_same(op, node):
                continue
            wanted = [split(i) for i in node.input if not i.startswith("^")]
            if len(wanted) != len(op.inputs):
                raise UnexpectedGraphError(f"{name} has got another number of inputs")
            tensors = [self._tensor(*place) for place in wanted]
            if None in tensors:  # then it reads what it did: of y and a part, not the part alone
                continue
            for i, tensor in enumerate(tensors):
                if tensor is op.inputs[i] or are_one_read(tensor.op, op.inputs[i].op):
                    continue
                if tensor.dtype != op.inputs[i].dtype:
                    raise UnexpectedGraphError(f"input {i} of {name} has got another type")
                inputs.append((op, i, tensor))
            waits = self._controls(op, node)
            if waits is not None:
                controls.append((op, waits))
        return inputs, controls

    def _reads_the_same(self, op: tf.Operation, node: NodeDef) -> bool:
        """Of most nodes of a large graph that shows at once."""
        sources = (split(i)[0] for i in node.input)
        return (
            node.input == self._before[node.name].input
            and not any(source in self._after and self._is_changed(source) for source in sources)
            and not op.control_inputs
        )

    def _controls(self, op: tf.Operation, node: NodeDef) -> list[tf.Operation] | None:
        """What the op shall wait for, None if that is what it waits for now."""
        now = list(op.control_inputs)
        if not now and not any(i.startswith("^") for i in node.input):
            return None
        before = {i for i in self._before[node.name].input if i.startswith("^")}
        after = {i for i in node.input if i.startswith("^")}
        wanted = [
            self._control(c.name)
            for c in now
            if f"^{c.name}" in after or f"^{c.name}" not in before
        ]
        wanted += [self._control(i[1:]) for i in after - before]
        if None in wanted:  # then what it waits for now stays, too
            return None
        wanted = list(dict.fromkeys(wanted))
        same = len(wanted) == len(now) and all(a is b for a, b in zip(wanted, now, strict=True))
        return None if same else wanted

    def _readers_beside(self) -> Iterator[tuple[tf.Operation, int, tf.Tensor]]:
        """What the ops of a norm that is left out shall read instead of what they do.

        What they read may be what another norm's ops gave, which would then be computed twice.
        """
        ends = [t.op for t in self._graph.outputs if t.graph is self._graph]
        ends += self._graph.control_outputs
        needed = with_sources(self._made.get(op.name) or op for op in ends)
        for name, made in self._made.items():
            old = self._old(name)
            if made is None or old is None or made is old or not old.outputs:
                continue
            readers = [op for op in set(old.outputs[0].consumers()) if op in needed]
            readers = [op for op in readers if self._is_left(op.name)]
            if not readers or old.outputs[0].dtype != made.outputs[0].dtype:
                continue
            above = with_sources([made])
            for op in readers:
                for index, tensor in enumerate(op.inputs):
                    if tensor is old.outputs[0] and op not in above:
                        yield op, index, made.outputs[0]

    def _is_left(self, name: str) -> bool:
        """Whether the op is one that the graph of after has not, or has made of something else."""
        if name not in self._after:
            return True
        return self._is_changed(name) and self._made.get(name) is None

    def _replace_outputs(self) -> None:
        graph = self._graph
        replaced: dict[int, tf.Tensor] = {}
        for tensor in graph.outputs:
            op = self._made.get(tensor.op.name) if tensor.graph is graph else None
            if op is not None and op is not tensor.op:
                replaced[id(tensor)] = op.outputs[tensor.value_index]
        if replaced:
            # Before anything is changed, as the first may raise.
            structured = tf.nest.map_structure(
                lambda t: replaced.get(id(t), t), graph.structured_outputs, expand_composites=True
            )
            graph.outputs[:] = [replaced.get(id(t), t) for t in graph.outputs]
            graph.structured_outputs = structured
        if any(self._made.get(op.name) is not None for op in graph.control_outputs):
            graph.control_outputs = [self._made.get(op.name) or op for op in graph.control_outputs]


def _set_controls(op: tf.Operation, wanted: list[tf.Operation]) -> None:
    op._remove_all_control_inputs()
    op._add_control_inputs(wanted)
