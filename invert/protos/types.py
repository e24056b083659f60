"""Types of the messages in TensorFlow's files, written by `tools/message_types.py`.

Objects of these types are made by `invert.protos.messages`.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator, MutableMapping, MutableSequence
from typing import Protocol, TypeVar, overload

_D = TypeVar("_D")
_K = TypeVar("_K")
_M = TypeVar("_M", bound="Message")
_V = TypeVar("_V", bound="Message", covariant=True)
_Self = TypeVar("_Self", bound="Message")


class Message(Protocol):
    """A message of protocol buffers."""

    DESCRIPTOR: typing.Any

    def HasField(self, field_name: str) -> bool: ...
    def ClearField(self, field_name: str) -> None: ...
    def WhichOneof(self, oneof_group: str) -> str | None: ...
    def CopyFrom(self: _Self, other: _Self) -> None: ...
    def MergeFrom(self: _Self, other: _Self) -> None: ...
    def SerializeToString(self, *, deterministic: bool = ...) -> bytes: ...
    def ByteSize(self) -> int: ...
    def ListFields(self) -> list[tuple[object, object]]: ...


class Messages(Protocol[_M]):
    """A repeated field of messages."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_M]: ...
    def __contains__(self, value: object, /) -> bool: ...
    @overload
    def __getitem__(self, index: int) -> _M: ...
    @overload
    def __getitem__(self, index: slice) -> list[_M]: ...
    def __delitem__(self, index: int | slice) -> None: ...
    def add(self, **fields: object) -> _M: ...
    def append(self, value: _M) -> None: ...
    def extend(self, values: Iterable[_M]) -> None: ...


class MessageMap(Protocol[_K, _V]):
    """A map to messages, which a look-up creates."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_K]: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: _K, /) -> _V: ...
    def __delitem__(self, key: _K, /) -> None: ...
    @overload
    def get(self, key: _K, /) -> _V | None: ...
    @overload
    def get(self, key: _K, default: _D, /) -> _V | _D: ...
    def items(self) -> Iterable[tuple[_K, _V]]: ...
    def keys(self) -> Iterable[_K]: ...
    def values(self) -> Iterable[_V]: ...


class SavedModel(Message):
    saved_model_schema_version: int
    meta_graphs: Messages[MetaGraphDef]


class MetaGraphDef(Message):
    class MetaInfoDef(Message):
        meta_graph_version: str
        stripped_op_list: OpList
        any_info: Any
        tags: MutableSequence[str]
        tensorflow_version: str
        tensorflow_git_version: str
        stripped_default_attrs: bool
        function_aliases: MutableMapping[str, str]

    meta_info_def: MetaGraphDef.MetaInfoDef
    graph_def: GraphDef
    saver_def: SaverDef
    collection_def: MessageMap[str, CollectionDef]
    signature_def: MessageMap[str, SignatureDef]
    asset_file_def: Messages[AssetFileDef]
    object_graph_def: SavedObjectGraph


class OpList(Message):
    op: Messages[OpDef]


class OpDef(Message):
    class ArgDef(Message):
        name: str
        type: int
        type_attr: str
        number_attr: str
        type_list_attr: str
        is_ref: bool

    class AttrDef(Message):
        name: str
        type: str
        default_value: AttrValue
        has_minimum: bool
        minimum: int
        allowed_values: AttrValue

    name: str
    input_arg: Messages[OpDef.ArgDef]
    output_arg: Messages[OpDef.ArgDef]
    control_output: MutableSequence[str]
    attr: Messages[OpDef.AttrDef]
    is_commutative: bool
    is_aggregate: bool
    is_stateful: bool
    allows_uninitialized_input: bool
    is_distributed_communication: bool


class TensorShapeProto(Message):
    class Dim(Message):
        size: int
        name: str

    dim: Messages[TensorShapeProto.Dim]
    unknown_rank: bool


class AttrValue(Message):
    class ListValue(Message):
        s: MutableSequence[bytes]
        i: MutableSequence[int]
        f: MutableSequence[float]
        b: MutableSequence[bool]
        type: MutableSequence[int]
        shape: Messages[TensorShapeProto]
        tensor: Messages[TensorProto]
        func: Messages[NameAttrList]

    s: bytes
    i: int
    f: float
    b: bool
    type: int
    shape: TensorShapeProto
    tensor: TensorProto
    list: AttrValue.ListValue
    func: NameAttrList
    placeholder: str


class TensorProto(Message):
    dtype: int
    tensor_shape: TensorShapeProto
    version_number: int
    tensor_content: bytes
    half_val: MutableSequence[int]
    float_val: MutableSequence[float]
    double_val: MutableSequence[float]
    int_val: MutableSequence[int]
    string_val: MutableSequence[bytes]
    scomplex_val: MutableSequence[float]
    int64_val: MutableSequence[int]
    bool_val: MutableSequence[bool]
    dcomplex_val: MutableSequence[float]
    uint32_val: MutableSequence[int]
    uint64_val: MutableSequence[int]
    float8_val: bytes


class NameAttrList(Message):
    name: str
    attr: MessageMap[str, AttrValue]


class Any(Message):
    type_url: str
    value: bytes


class GraphDef(Message):
    node: Messages[NodeDef]
    versions: VersionDef
    version: int
    library: FunctionDefLibrary


class NodeDef(Message):
    name: str
    op: str
    input: MutableSequence[str]
    device: str
    attr: MessageMap[str, AttrValue]


class VersionDef(Message):
    producer: int
    min_consumer: int
    bad_consumers: MutableSequence[int]


class FunctionDefLibrary(Message):
    function: Messages[FunctionDef]
    gradient: Messages[GradientDef]
    registered_gradients: Messages[RegisteredGradient]


class FunctionDef(Message):
    class ArgAttrs(Message):
        attr: MessageMap[str, AttrValue]

    signature: OpDef
    attr: MessageMap[str, AttrValue]
    arg_attr: MessageMap[int, FunctionDef.ArgAttrs]
    resource_arg_unique_id: MutableMapping[int, int]
    node_def: Messages[NodeDef]
    ret: MutableMapping[str, str]
    control_ret: MutableMapping[str, str]


class GradientDef(Message):
    function_name: str
    gradient_func: str


class RegisteredGradient(Message):
    gradient_func: str
    registered_op_type: str


class SaverDef(Message):
    filename_tensor_name: str
    save_tensor_name: str
    restore_op_name: str
    max_to_keep: int
    sharded: bool
    keep_checkpoint_every_n_hours: float
    version: int


class CollectionDef(Message):
    class NodeList(Message):
        value: MutableSequence[str]

    class BytesList(Message):
        value: MutableSequence[bytes]

    class Int64List(Message):
        value: MutableSequence[int]

    class FloatList(Message):
        value: MutableSequence[float]

    class AnyList(Message):
        value: Messages[Any]

    node_list: CollectionDef.NodeList
    bytes_list: CollectionDef.BytesList
    int64_list: CollectionDef.Int64List
    float_list: CollectionDef.FloatList
    any_list: CollectionDef.AnyList


class SignatureDef(Message):
    inputs: MessageMap[str, TensorInfo]
    outputs: MessageMap[str, TensorInfo]
    method_name: str
    defaults: MessageMap[str, TensorProto]


class TensorInfo(Message):
    class CooSparse(Message):
        values_tensor_name: str
        indices_tensor_name: str
        dense_shape_tensor_name: str

    class CompositeTensor(Message):
        type_spec: TypeSpecProto
        components: Messages[TensorInfo]

    name: str
    coo_sparse: TensorInfo.CooSparse
    composite_tensor: TensorInfo.CompositeTensor
    dtype: int
    tensor_shape: TensorShapeProto


class TypeSpecProto(Message):
    type_spec_class: int
    type_state: StructuredValue
    type_spec_class_name: str
    num_flat_components: int


class StructuredValue(Message):
    none_value: NoneValue
    float64_value: float
    int64_value: int
    string_value: str
    bool_value: bool
    tensor_shape_value: TensorShapeProto
    tensor_dtype_value: int
    tensor_spec_value: TensorSpecProto
    type_spec_value: TypeSpecProto
    bounded_tensor_spec_value: BoundedTensorSpecProto
    list_value: ListValue
    tuple_value: TupleValue
    dict_value: DictValue
    named_tuple_value: NamedTupleValue
    tensor_value: TensorProto
    numpy_value: TensorProto


class NoneValue(Message): ...


class TensorSpecProto(Message):
    name: str
    shape: TensorShapeProto
    dtype: int


class BoundedTensorSpecProto(Message):
    name: str
    shape: TensorShapeProto
    dtype: int
    minimum: TensorProto
    maximum: TensorProto


class ListValue(Message):
    values: Messages[StructuredValue]


class TupleValue(Message):
    values: Messages[StructuredValue]


class DictValue(Message):
    fields: MessageMap[str, StructuredValue]


class NamedTupleValue(Message):
    name: str
    values: Messages[PairValue]


class PairValue(Message):
    key: str
    value: StructuredValue


class AssetFileDef(Message):
    tensor_info: TensorInfo
    filename: str


class SavedObjectGraph(Message):
    nodes: Messages[SavedObject]
    concrete_functions: MessageMap[str, SavedConcreteFunction]


class SavedObject(Message):
    children: Messages[TrackableObjectGraph.TrackableObject.ObjectReference]
    dependencies: Messages[TrackableObjectGraph.TrackableObject.ObjectReference]
    slot_variables: Messages[TrackableObjectGraph.TrackableObject.SlotVariableReference]
    user_object: SavedUserObject
    asset: SavedAsset
    function: SavedFunction
    variable: SavedVariable
    bare_concrete_function: SavedBareConcreteFunction
    constant: SavedConstant
    resource: SavedResource
    captured_tensor: CapturedTensor
    saveable_objects: MessageMap[str, SaveableObject]
    registered_name: str
    serialized_user_proto: Any
    registered_saver: str


class SavedUserObject(Message):
    identifier: str
    version: VersionDef
    metadata: str


class SavedAsset(Message):
    asset_file_def_index: int


class SavedFunction(Message):
    concrete_functions: MutableSequence[str]
    function_spec: FunctionSpec


class FunctionSpec(Message):
    fullargspec: StructuredValue
    is_method: bool
    input_signature: StructuredValue
    jit_compile: int


class SavedVariable(Message):
    dtype: int
    shape: TensorShapeProto
    trainable: bool
    synchronization: int
    aggregation: int
    name: str
    device: str
    experimental_distributed_variable_components: Messages[SavedVariable]


class SavedBareConcreteFunction(Message):
    concrete_function_name: str
    argument_keywords: MutableSequence[str]
    allowed_positional_arguments: int
    function_spec: FunctionSpec


class SavedConstant(Message):
    operation: str


class SavedResource(Message):
    device: str


class CapturedTensor(Message):
    name: str
    concrete_function: str


class SaveableObject(Message):
    save_function: int
    restore_function: int


class SavedConcreteFunction(Message):
    bound_inputs: MutableSequence[int]
    canonicalized_input_signature: StructuredValue
    output_signature: StructuredValue


class BundleHeaderProto(Message):
    num_shards: int
    endianness: int
    version: VersionDef


class BundleEntryProto(Message):
    dtype: int
    shape: TensorShapeProto
    shard_id: int
    offset: int
    size: int
    crc32c: int
    slices: Messages[TensorSliceProto]


class TensorSliceProto(Message):
    class Extent(Message):
        start: int
        length: int

    extent: Messages[TensorSliceProto.Extent]


class TrackableObjectGraph(Message):
    class TrackableObject(Message):
        class ObjectReference(Message):
            node_id: int
            local_name: str

        class SlotVariableReference(Message):
            original_variable_node_id: int
            slot_name: str
            slot_variable_node_id: int

        class SerializedTensor(Message):
            name: str
            full_name: str
            checkpoint_key: str

        children: Messages[TrackableObjectGraph.TrackableObject.ObjectReference]
        attributes: Messages[TrackableObjectGraph.TrackableObject.SerializedTensor]
        slot_variables: Messages[TrackableObjectGraph.TrackableObject.SlotVariableReference]
        registered_saver: RegisteredSaver
        has_checkpoint_values: BoolValue

    nodes: Messages[TrackableObjectGraph.TrackableObject]


class RegisteredSaver(Message):
    name: str
    object_name: str


class BoolValue(Message):
    value: bool


class FingerprintDef(Message):
    saved_model_checksum: int
    graph_def_program_hash: int
    signature_def_hash: int
    saved_object_graph_hash: int
    checkpoint_hash: int
    uuid: str
    version: VersionDef


class VariableDef(Message):
    variable_name: str
    initial_value_name: str
    initializer_name: str
    snapshot_name: str
    save_slice_info_def: SaveSliceInfoDef
    is_resource: bool
    trainable: bool
    synchronization: int
    aggregation: int


class SaveSliceInfoDef(Message):
    full_name: str
    full_shape: MutableSequence[int]
    var_offset: MutableSequence[int]
    var_shape: MutableSequence[int]


class OpSharding(Message):
    type: int
    tile_assignment_dimensions: MutableSequence[int]
    tile_assignment_devices: MutableSequence[int]
    replicate_on_last_tile_dim: bool
    last_tile_dims: MutableSequence[int]
    iota_reshape_dims: MutableSequence[int]
    iota_transpose_perm: MutableSequence[int]


class UniformQuantizedConvolutionDimensionNumbersAttr(Message):
    input_batch_dimension: int
    input_feature_dimension: int
    input_spatial_dimensions: MutableSequence[int]
    kernel_input_feature_dimension: int
    kernel_output_feature_dimension: int
    kernel_spatial_dimensions: MutableSequence[int]
    output_batch_dimension: int
    output_feature_dimension: int
    output_spatial_dimensions: MutableSequence[int]


class DotDimensionNumbers(Message):
    lhs_contracting_dimensions: MutableSequence[int]
    rhs_contracting_dimensions: MutableSequence[int]
    lhs_batch_dimensions: MutableSequence[int]
    rhs_batch_dimensions: MutableSequence[int]


class ConvolutionDimensionNumbers(Message):
    input_batch_dimension: int
    input_feature_dimension: int
    input_spatial_dimensions: MutableSequence[int]
    kernel_input_feature_dimension: int
    kernel_output_feature_dimension: int
    kernel_spatial_dimensions: MutableSequence[int]
    output_batch_dimension: int
    output_feature_dimension: int
    output_spatial_dimensions: MutableSequence[int]


class GatherDimensionNumbers(Message):
    offset_dims: MutableSequence[int]
    collapsed_slice_dims: MutableSequence[int]
    start_index_map: MutableSequence[int]
    index_vector_dim: int
    operand_batching_dims: MutableSequence[int]
    start_indices_batching_dims: MutableSequence[int]


class ScatterDimensionNumbers(Message):
    update_window_dims: MutableSequence[int]
    inserted_window_dims: MutableSequence[int]
    scatter_dims_to_operand_dims: MutableSequence[int]
    index_vector_dim: int
    input_batching_dims: MutableSequence[int]
    scatter_indices_batching_dims: MutableSequence[int]


class PrecisionConfig(Message):
    operand_precision: MutableSequence[int]
    algorithm: int


Attributes = MessageMap[str, AttrValue]
