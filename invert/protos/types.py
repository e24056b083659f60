"""TensorFlow's messages (2.21) as types, from which their schema is read.

Only fields that are read, and all of a oneof group, are listed; others are kept as they are. A
field is annotated with its type, its number and the name of its oneof group. Enums that no graph as
text holds are `int32`, which has the same encoding. `invert.protos.messages` makes the objects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

if TYPE_CHECKING:
    from collections.abc import Mapping, MutableMapping, MutableSequence

    from invert.protos.containers import Message, MessageMap, Messages

    Attributes = Mapping[str, "AttrValue"]
else:
    Message = Attributes = object  # The annotations alone are read.

int64 = int32 = uint64 = uint32 = sint64 = fixed32 = int
double = float
string = str
DataType = TypeSpecClass = SaverVersion = int

_DATA_TYPES = (
    "FLOAT DOUBLE INT32 UINT8 INT16 INT8 STRING COMPLEX64 INT64 BOOL QINT8 QUINT8 QINT32 BFLOAT16 "
    "QINT16 QUINT16 UINT16 COMPLEX128 HALF RESOURCE VARIANT UINT32 UINT64 FLOAT8_E5M2 "
    "FLOAT8_E4M3FN FLOAT8_E4M3FNUZ FLOAT8_E4M3B11FNUZ FLOAT8_E5M2FNUZ INT4 UINT4 INT2 UINT2 "
    "FLOAT4_E2M1FN"
).split()
_SPECS = (
    "SPARSE_TENSOR INDEXED_SLICES RAGGED_TENSOR TENSOR_ARRAY DATA_DATASET DATA_ITERATOR OPTIONAL "
    "PER_REPLICA VARIABLE ROW_PARTITION"
).split()

# The numbers of the names that stand for them in text.
ENUMS = {
    "DataType": {
        "DT_INVALID": 0,
        **{f"DT_{name}": number for number, name in enumerate(_DATA_TYPES, 1)},
        **{f"DT_{name}_REF": number for number, name in enumerate(_DATA_TYPES, 101)},
    },
    "TypeSpecClass": {
        "UNKNOWN": 0,
        **{f"{name}_SPEC": number for number, name in enumerate(_SPECS, 1)},
        "REGISTERED_TYPE_SPEC": 12,
        "EXTENSION_TYPE_SPEC": 13,
    },
    "SaverVersion": {"LEGACY": 0, "V1": 1, "V2": 2},
}


class SavedModel(Message):
    meta_graphs: Annotated[Messages[MetaGraphDef], 2]


class MetaGraphDef(Message):
    class MetaInfoDef(Message):
        tags: Annotated[MutableSequence[string], 4]

    meta_info_def: Annotated[MetaGraphDef.MetaInfoDef, 1]
    graph_def: Annotated[GraphDef, 2]
    saver_def: Annotated[SaverDef, 3]
    collection_def: Annotated[MessageMap[string, CollectionDef], 4]
    signature_def: Annotated[MessageMap[string, SignatureDef], 5]
    asset_file_def: Annotated[Messages[AssetFileDef], 6]
    object_graph_def: Annotated[SavedObjectGraph, 7]


class OpList(Message):
    op: Annotated[Messages[OpDef], 1]


class OpDef(Message):
    class ArgDef(Message):
        name: Annotated[string, 1]
        type: Annotated[DataType, 3]
        type_attr: Annotated[string, 4]
        number_attr: Annotated[string, 5]
        type_list_attr: Annotated[string, 6]
        is_ref: Annotated[bool, 16]

    class AttrDef(Message):
        name: Annotated[string, 1]
        type: Annotated[string, 2]
        default_value: Annotated[AttrValue, 3]
        has_minimum: Annotated[bool, 5]
        minimum: Annotated[int64, 6]
        allowed_values: Annotated[AttrValue, 7]

    name: Annotated[string, 1]
    input_arg: Annotated[Messages[OpDef.ArgDef], 2]
    output_arg: Annotated[Messages[OpDef.ArgDef], 3]
    control_output: Annotated[MutableSequence[string], 20]
    attr: Annotated[Messages[OpDef.AttrDef], 4]
    is_commutative: Annotated[bool, 18]
    is_aggregate: Annotated[bool, 16]
    is_stateful: Annotated[bool, 17]
    allows_uninitialized_input: Annotated[bool, 19]
    is_distributed_communication: Annotated[bool, 21]


class TensorShapeProto(Message):
    class Dim(Message):
        size: Annotated[int64, 1]
        name: Annotated[string, 2]

    dim: Annotated[Messages[TensorShapeProto.Dim], 2]
    unknown_rank: Annotated[bool, 3]


class AttrValue(Message):
    class ListValue(Message):
        s: Annotated[MutableSequence[bytes], 2]
        i: Annotated[MutableSequence[int64], 3]
        f: Annotated[MutableSequence[float], 4]
        b: Annotated[MutableSequence[bool], 5]
        type: Annotated[MutableSequence[DataType], 6]
        shape: Annotated[Messages[TensorShapeProto], 7]
        tensor: Annotated[Messages[TensorProto], 8]
        func: Annotated[Messages[NameAttrList], 9]

    s: Annotated[bytes, 2, "value"]
    i: Annotated[int64, 3, "value"]
    f: Annotated[float, 4, "value"]
    b: Annotated[bool, 5, "value"]
    type: Annotated[DataType, 6, "value"]
    shape: Annotated[TensorShapeProto, 7, "value"]
    tensor: Annotated[TensorProto, 8, "value"]
    list: Annotated[AttrValue.ListValue, 1, "value"]
    func: Annotated[NameAttrList, 10, "value"]
    placeholder: Annotated[string, 9, "value"]


class TensorProto(Message):
    dtype: Annotated[DataType, 1]
    tensor_shape: Annotated[TensorShapeProto, 2]
    tensor_content: Annotated[bytes, 4]
    half_val: Annotated[MutableSequence[int32], 13]
    float_val: Annotated[MutableSequence[float], 5]
    double_val: Annotated[MutableSequence[double], 6]
    int_val: Annotated[MutableSequence[int32], 7]
    string_val: Annotated[MutableSequence[bytes], 8]
    scomplex_val: Annotated[MutableSequence[float], 9]
    int64_val: Annotated[MutableSequence[int64], 10]
    bool_val: Annotated[MutableSequence[bool], 11]
    dcomplex_val: Annotated[MutableSequence[double], 12]
    uint32_val: Annotated[MutableSequence[uint32], 16]
    uint64_val: Annotated[MutableSequence[uint64], 17]
    float8_val: Annotated[bytes, 18]


class NameAttrList(Message):
    name: Annotated[string, 1]
    attr: Annotated[MessageMap[string, AttrValue], 2]


class Any(Message):
    type_url: Annotated[string, 1]
    value: Annotated[bytes, 2]


class GraphDef(Message):
    node: Annotated[Messages[NodeDef], 1]
    versions: Annotated[VersionDef, 4]
    version: Annotated[int32, 3]
    library: Annotated[FunctionDefLibrary, 2]


class NodeDef(Message):
    name: Annotated[string, 1]
    op: Annotated[string, 2]
    input: Annotated[MutableSequence[string], 3]
    device: Annotated[string, 4]
    attr: Annotated[MessageMap[string, AttrValue], 5]


class VersionDef(Message):
    producer: Annotated[int32, 1]
    min_consumer: Annotated[int32, 2]
    bad_consumers: Annotated[MutableSequence[int32], 3]


class FunctionDefLibrary(Message):
    function: Annotated[Messages[FunctionDef], 1]
    gradient: Annotated[Messages[GradientDef], 2]
    registered_gradients: Annotated[Messages[RegisteredGradient], 3]


class FunctionDef(Message):
    signature: Annotated[OpDef, 1]
    attr: Annotated[MessageMap[string, AttrValue], 5]
    node_def: Annotated[Messages[NodeDef], 3]
    ret: Annotated[MutableMapping[string, string], 4]
    control_ret: Annotated[MutableMapping[string, string], 6]


class GradientDef(Message):
    function_name: Annotated[string, 1]
    gradient_func: Annotated[string, 2]


class RegisteredGradient(Message):
    gradient_func: Annotated[string, 1]
    registered_op_type: Annotated[string, 2]


class SaverDef(Message):
    filename_tensor_name: Annotated[string, 1]
    restore_op_name: Annotated[string, 3]
    sharded: Annotated[bool, 5]
    version: Annotated[SaverVersion, 7]


class CollectionDef(Message):
    class NodeList(Message):
        value: Annotated[MutableSequence[string], 1]

    class BytesList(Message):
        value: Annotated[MutableSequence[bytes], 1]

    class Int64List(Message):
        value: Annotated[MutableSequence[int64], 1]

    class FloatList(Message):
        value: Annotated[MutableSequence[float], 1]

    class AnyList(Message):
        value: Annotated[Messages[Any], 1]

    node_list: Annotated[CollectionDef.NodeList, 1, "kind"]
    bytes_list: Annotated[CollectionDef.BytesList, 2, "kind"]
    int64_list: Annotated[CollectionDef.Int64List, 3, "kind"]
    float_list: Annotated[CollectionDef.FloatList, 4, "kind"]
    any_list: Annotated[CollectionDef.AnyList, 5, "kind"]


class SignatureDef(Message):
    inputs: Annotated[MessageMap[string, TensorInfo], 1]
    outputs: Annotated[MessageMap[string, TensorInfo], 2]
    defaults: Annotated[MessageMap[string, TensorProto], 4]


class TensorInfo(Message):
    class CooSparse(Message):
        values_tensor_name: Annotated[string, 1]
        indices_tensor_name: Annotated[string, 2]
        dense_shape_tensor_name: Annotated[string, 3]

    class CompositeTensor(Message): ...

    name: Annotated[string, 1, "encoding"]
    coo_sparse: Annotated[TensorInfo.CooSparse, 4, "encoding"]
    composite_tensor: Annotated[TensorInfo.CompositeTensor, 5, "encoding"]
    dtype: Annotated[DataType, 2]
    tensor_shape: Annotated[TensorShapeProto, 3]


class TypeSpecProto(Message):
    type_spec_class: Annotated[TypeSpecClass, 1]
    type_state: Annotated[StructuredValue, 2]
    type_spec_class_name: Annotated[string, 3]


class StructuredValue(Message):
    none_value: Annotated[NoneValue, 1, "kind"]
    float64_value: Annotated[double, 11, "kind"]
    int64_value: Annotated[sint64, 12, "kind"]
    string_value: Annotated[string, 13, "kind"]
    bool_value: Annotated[bool, 14, "kind"]
    tensor_shape_value: Annotated[TensorShapeProto, 31, "kind"]
    tensor_dtype_value: Annotated[DataType, 32, "kind"]
    tensor_spec_value: Annotated[TensorSpecProto, 33, "kind"]
    type_spec_value: Annotated[TypeSpecProto, 34, "kind"]
    bounded_tensor_spec_value: Annotated[BoundedTensorSpecProto, 35, "kind"]
    list_value: Annotated[ListValue, 51, "kind"]
    tuple_value: Annotated[TupleValue, 52, "kind"]
    dict_value: Annotated[DictValue, 53, "kind"]
    named_tuple_value: Annotated[NamedTupleValue, 54, "kind"]
    tensor_value: Annotated[TensorProto, 55, "kind"]
    numpy_value: Annotated[TensorProto, 56, "kind"]


class NoneValue(Message): ...


class TensorSpecProto(Message):
    name: Annotated[string, 1]
    shape: Annotated[TensorShapeProto, 2]
    dtype: Annotated[DataType, 3]


class BoundedTensorSpecProto(Message):
    name: Annotated[string, 1]
    shape: Annotated[TensorShapeProto, 2]
    dtype: Annotated[DataType, 3]
    minimum: Annotated[TensorProto, 4]
    maximum: Annotated[TensorProto, 5]


class ListValue(Message):
    values: Annotated[Messages[StructuredValue], 1]


class TupleValue(Message):
    values: Annotated[Messages[StructuredValue], 1]


class DictValue(Message):
    fields: Annotated[MessageMap[string, StructuredValue], 1]


class NamedTupleValue(Message):
    name: Annotated[string, 1]
    values: Annotated[Messages[PairValue], 2]


class PairValue(Message):
    key: Annotated[string, 1]
    value: Annotated[StructuredValue, 2]


class AssetFileDef(Message):
    tensor_info: Annotated[TensorInfo, 1]
    filename: Annotated[string, 2]


class SavedObjectGraph(Message):
    nodes: Annotated[Messages[SavedObject], 1]
    concrete_functions: Annotated[MessageMap[string, SavedConcreteFunction], 2]


class SavedObject(Message):
    children: Annotated[Messages[TrackableObjectGraph.TrackableObject.ObjectReference], 1]
    dependencies: Annotated[Messages[TrackableObjectGraph.TrackableObject.ObjectReference], 15]
    slot_variables: Annotated[
        Messages[TrackableObjectGraph.TrackableObject.SlotVariableReference], 3
    ]
    user_object: Annotated[SavedUserObject, 4, "kind"]
    asset: Annotated[SavedAsset, 5, "kind"]
    function: Annotated[SavedFunction, 6, "kind"]
    variable: Annotated[SavedVariable, 7, "kind"]
    bare_concrete_function: Annotated[SavedBareConcreteFunction, 8, "kind"]
    constant: Annotated[SavedConstant, 9, "kind"]
    resource: Annotated[SavedResource, 10, "kind"]
    captured_tensor: Annotated[CapturedTensor, 12, "kind"]
    saveable_objects: Annotated[MessageMap[string, SaveableObject], 11]
    registered_name: Annotated[string, 13]
    registered_saver: Annotated[string, 16]


class SavedUserObject(Message):
    identifier: Annotated[string, 1]
    version: Annotated[VersionDef, 2]
    metadata: Annotated[string, 3]


class SavedAsset(Message):
    asset_file_def_index: Annotated[int32, 1]


class SavedFunction(Message):
    concrete_functions: Annotated[MutableSequence[string], 1]
    function_spec: Annotated[FunctionSpec, 2]


class FunctionSpec(Message):
    fullargspec: Annotated[StructuredValue, 1]
    is_method: Annotated[bool, 2]
    input_signature: Annotated[StructuredValue, 5]


class SavedVariable(Message):
    dtype: Annotated[DataType, 1]
    shape: Annotated[TensorShapeProto, 2]
    trainable: Annotated[bool, 3]
    name: Annotated[string, 6]
    device: Annotated[string, 7]


class SavedBareConcreteFunction(Message):
    concrete_function_name: Annotated[string, 1]
    function_spec: Annotated[FunctionSpec, 4]


class SavedConstant(Message):
    operation: Annotated[string, 1]


class SavedResource(Message):
    device: Annotated[string, 1]


class CapturedTensor(Message):
    name: Annotated[string, 1]
    concrete_function: Annotated[string, 2]


class SaveableObject(Message):
    save_function: Annotated[int32, 2]
    restore_function: Annotated[int32, 3]


class SavedConcreteFunction(Message):
    bound_inputs: Annotated[MutableSequence[int32], 2]
    canonicalized_input_signature: Annotated[StructuredValue, 3]
    output_signature: Annotated[StructuredValue, 4]


class BundleHeaderProto(Message):
    num_shards: Annotated[int32, 1]
    endianness: Annotated[int32, 2]
    version: Annotated[VersionDef, 3]


class BundleEntryProto(Message):
    dtype: Annotated[DataType, 1]
    shape: Annotated[TensorShapeProto, 2]
    shard_id: Annotated[int32, 3]
    offset: Annotated[int64, 4]
    size: Annotated[int64, 5]
    crc32c: Annotated[fixed32, 6]
    slices: Annotated[Messages[TensorSliceProto], 7]


class TensorSliceProto(Message):
    class Extent(Message):
        start: Annotated[int64, 1]
        length: Annotated[int64, 2, "has_length_hack"]

    extent: Annotated[Messages[TensorSliceProto.Extent], 1]


class TrackableObjectGraph(Message):
    class TrackableObject(Message):
        class ObjectReference(Message):
            node_id: Annotated[int32, 1]
            local_name: Annotated[string, 2]

        class SlotVariableReference(Message):
            original_variable_node_id: Annotated[int32, 1]
            slot_name: Annotated[string, 2]
            slot_variable_node_id: Annotated[int32, 3]

        class SerializedTensor(Message):
            name: Annotated[string, 1]
            full_name: Annotated[string, 2]
            checkpoint_key: Annotated[string, 3]

        children: Annotated[Messages[TrackableObjectGraph.TrackableObject.ObjectReference], 1]
        attributes: Annotated[Messages[TrackableObjectGraph.TrackableObject.SerializedTensor], 2]
        slot_variables: Annotated[
            Messages[TrackableObjectGraph.TrackableObject.SlotVariableReference], 3
        ]
        registered_saver: Annotated[RegisteredSaver, 4]

    nodes: Annotated[Messages[TrackableObjectGraph.TrackableObject], 1]


class RegisteredSaver(Message):
    name: Annotated[string, 1]


class VariableDef(Message):
    variable_name: Annotated[string, 1]
    initializer_name: Annotated[string, 2]
    save_slice_info_def: Annotated[SaveSliceInfoDef, 4]
    trainable: Annotated[bool, 7]


class SaveSliceInfoDef(Message):
    full_name: Annotated[string, 1]
    full_shape: Annotated[MutableSequence[int64], 2]
    var_offset: Annotated[MutableSequence[int64], 3]
    var_shape: Annotated[MutableSequence[int64], 4]


class OpSharding(Message):
    type: Annotated[int32, 1]
    tile_assignment_dimensions: Annotated[MutableSequence[int64], 3]
    tile_assignment_devices: Annotated[MutableSequence[int64], 4]
    replicate_on_last_tile_dim: Annotated[bool, 6]
    last_tile_dims: Annotated[MutableSequence[int32], 8]
    iota_reshape_dims: Annotated[MutableSequence[int64], 9]
    iota_transpose_perm: Annotated[MutableSequence[int32], 10]


class UniformQuantizedConvolutionDimensionNumbersAttr(Message):
    input_batch_dimension: Annotated[int64, 1]
    input_feature_dimension: Annotated[int64, 2]
    input_spatial_dimensions: Annotated[MutableSequence[int64], 3]
    kernel_input_feature_dimension: Annotated[int64, 4]
    kernel_output_feature_dimension: Annotated[int64, 5]
    kernel_spatial_dimensions: Annotated[MutableSequence[int64], 6]
    output_batch_dimension: Annotated[int64, 7]
    output_feature_dimension: Annotated[int64, 8]
    output_spatial_dimensions: Annotated[MutableSequence[int64], 9]


class DotDimensionNumbers(Message):
    lhs_contracting_dimensions: Annotated[MutableSequence[int64], 1]
    rhs_contracting_dimensions: Annotated[MutableSequence[int64], 2]
    lhs_batch_dimensions: Annotated[MutableSequence[int64], 3]
    rhs_batch_dimensions: Annotated[MutableSequence[int64], 4]


class ConvolutionDimensionNumbers(Message):
    input_batch_dimension: Annotated[int64, 7]
    input_feature_dimension: Annotated[int64, 8]
    input_spatial_dimensions: Annotated[MutableSequence[int64], 11]
    kernel_input_feature_dimension: Annotated[int64, 3]
    kernel_output_feature_dimension: Annotated[int64, 4]
    kernel_spatial_dimensions: Annotated[MutableSequence[int64], 6]
    output_batch_dimension: Annotated[int64, 9]
    output_feature_dimension: Annotated[int64, 10]
    output_spatial_dimensions: Annotated[MutableSequence[int64], 12]


class GatherDimensionNumbers(Message):
    offset_dims: Annotated[MutableSequence[int64], 1]
    collapsed_slice_dims: Annotated[MutableSequence[int64], 2]
    start_index_map: Annotated[MutableSequence[int64], 3]
    index_vector_dim: Annotated[int64, 4]
    operand_batching_dims: Annotated[MutableSequence[int64], 5]
    start_indices_batching_dims: Annotated[MutableSequence[int64], 6]


class ScatterDimensionNumbers(Message):
    update_window_dims: Annotated[MutableSequence[int64], 1]
    inserted_window_dims: Annotated[MutableSequence[int64], 2]
    scatter_dims_to_operand_dims: Annotated[MutableSequence[int64], 3]
    index_vector_dim: Annotated[int64, 4]
    input_batching_dims: Annotated[MutableSequence[int64], 5]
    scatter_indices_batching_dims: Annotated[MutableSequence[int64], 6]


class PrecisionConfig(Message):
    operand_precision: Annotated[MutableSequence[int32], 1]
    algorithm: Annotated[int32, 2]
