"""Field numbers and types of the messages in TensorFlow's files, as of TensorFlow 2.21.

For each message its name, then a line for each field: number, name and type, and after `@` the name
of its oneof group. `X*` is repeated; `string:X` is a map. Enums are `int32`, which has the same
encoding.
"""

SCHEMA = """
SavedModel
    1 saved_model_schema_version int64
    2 meta_graphs MetaGraphDef*

MetaGraphDef
    1 meta_info_def MetaGraphDef.MetaInfoDef
    2 graph_def GraphDef
    3 saver_def SaverDef
    4 collection_def string:CollectionDef
    5 signature_def string:SignatureDef
    6 asset_file_def AssetFileDef*
    7 object_graph_def SavedObjectGraph

MetaGraphDef.MetaInfoDef
    1 meta_graph_version string
    2 stripped_op_list OpList
    3 any_info Any
    4 tags string*
    5 tensorflow_version string
    6 tensorflow_git_version string
    7 stripped_default_attrs bool
    8 function_aliases string:string

OpList
    1 op OpDef*

OpDef
    1 name string
    2 input_arg OpDef.ArgDef*
    3 output_arg OpDef.ArgDef*
    20 control_output string*
    4 attr OpDef.AttrDef*
    18 is_commutative bool
    16 is_aggregate bool
    17 is_stateful bool
    19 allows_uninitialized_input bool
    21 is_distributed_communication bool

OpDef.ArgDef
    1 name string
    3 type int32
    4 type_attr string
    5 number_attr string
    6 type_list_attr string
    16 is_ref bool

TensorShapeProto
    2 dim TensorShapeProto.Dim*
    3 unknown_rank bool

TensorShapeProto.Dim
    1 size int64
    2 name string

OpDef.AttrDef
    1 name string
    2 type string
    3 default_value AttrValue
    5 has_minimum bool
    6 minimum int64
    7 allowed_values AttrValue

AttrValue
    2 s bytes @value
    3 i int64 @value
    4 f float @value
    5 b bool @value
    6 type int32 @value
    7 shape TensorShapeProto @value
    8 tensor TensorProto @value
    1 list AttrValue.ListValue @value
    10 func NameAttrList @value
    9 placeholder string @value

TensorProto
    1 dtype int32
    2 tensor_shape TensorShapeProto
    3 version_number int32
    4 tensor_content bytes
    13 half_val int32*
    5 float_val float*
    6 double_val double*
    7 int_val int32*
    8 string_val bytes*
    9 scomplex_val float*
    10 int64_val int64*
    11 bool_val bool*
    12 dcomplex_val double*
    16 uint32_val uint32*
    17 uint64_val uint64*
    18 float8_val bytes

AttrValue.ListValue
    2 s bytes*
    3 i int64*
    4 f float*
    5 b bool*
    6 type int32*
    7 shape TensorShapeProto*
    8 tensor TensorProto*
    9 func NameAttrList*

NameAttrList
    1 name string
    2 attr string:AttrValue

Any
    1 type_url string
    2 value bytes

GraphDef
    1 node NodeDef*
    4 versions VersionDef
    3 version int32
    2 library FunctionDefLibrary

NodeDef
    1 name string
    2 op string
    3 input string*
    4 device string
    5 attr string:AttrValue

VersionDef
    1 producer int32
    2 min_consumer int32
    3 bad_consumers int32*

FunctionDefLibrary
    1 function FunctionDef*
    2 gradient GradientDef*
    3 registered_gradients RegisteredGradient*

FunctionDef
    1 signature OpDef
    5 attr string:AttrValue
    7 arg_attr uint32:FunctionDef.ArgAttrs
    8 resource_arg_unique_id uint32:uint32
    3 node_def NodeDef*
    4 ret string:string
    6 control_ret string:string

FunctionDef.ArgAttrs
    1 attr string:AttrValue

GradientDef
    1 function_name string
    2 gradient_func string

RegisteredGradient
    1 gradient_func string
    2 registered_op_type string

SaverDef
    1 filename_tensor_name string
    2 save_tensor_name string
    3 restore_op_name string
    4 max_to_keep int32
    5 sharded bool
    6 keep_checkpoint_every_n_hours float
    7 version int32

CollectionDef
    1 node_list CollectionDef.NodeList @kind
    2 bytes_list CollectionDef.BytesList @kind
    3 int64_list CollectionDef.Int64List @kind
    4 float_list CollectionDef.FloatList @kind
    5 any_list CollectionDef.AnyList @kind

CollectionDef.NodeList
    1 value string*

CollectionDef.BytesList
    1 value bytes*

CollectionDef.Int64List
    1 value int64*

CollectionDef.FloatList
    1 value float*

CollectionDef.AnyList
    1 value Any*

SignatureDef
    1 inputs string:TensorInfo
    2 outputs string:TensorInfo
    3 method_name string
    4 defaults string:TensorProto

TensorInfo
    1 name string @encoding
    4 coo_sparse TensorInfo.CooSparse @encoding
    5 composite_tensor TensorInfo.CompositeTensor @encoding
    2 dtype int32
    3 tensor_shape TensorShapeProto

TensorInfo.CooSparse
    1 values_tensor_name string
    2 indices_tensor_name string
    3 dense_shape_tensor_name string

TensorInfo.CompositeTensor
    1 type_spec TypeSpecProto
    2 components TensorInfo*

TypeSpecProto
    1 type_spec_class int32
    2 type_state StructuredValue
    3 type_spec_class_name string
    4 num_flat_components int32

StructuredValue
    1 none_value NoneValue @kind
    11 float64_value double @kind
    12 int64_value sint64 @kind
    13 string_value string @kind
    14 bool_value bool @kind
    31 tensor_shape_value TensorShapeProto @kind
    32 tensor_dtype_value int32 @kind
    33 tensor_spec_value TensorSpecProto @kind
    34 type_spec_value TypeSpecProto @kind
    35 bounded_tensor_spec_value BoundedTensorSpecProto @kind
    51 list_value ListValue @kind
    52 tuple_value TupleValue @kind
    53 dict_value DictValue @kind
    54 named_tuple_value NamedTupleValue @kind
    55 tensor_value TensorProto @kind
    56 numpy_value TensorProto @kind

NoneValue

TensorSpecProto
    1 name string
    2 shape TensorShapeProto
    3 dtype int32

BoundedTensorSpecProto
    1 name string
    2 shape TensorShapeProto
    3 dtype int32
    4 minimum TensorProto
    5 maximum TensorProto

ListValue
    1 values StructuredValue*

TupleValue
    1 values StructuredValue*

DictValue
    1 fields string:StructuredValue

NamedTupleValue
    1 name string
    2 values PairValue*

PairValue
    1 key string
    2 value StructuredValue

AssetFileDef
    1 tensor_info TensorInfo
    2 filename string

SavedObjectGraph
    1 nodes SavedObject*
    2 concrete_functions string:SavedConcreteFunction

SavedObject
    1 children TrackableObjectGraph.TrackableObject.ObjectReference*
    15 dependencies TrackableObjectGraph.TrackableObject.ObjectReference*
    3 slot_variables TrackableObjectGraph.TrackableObject.SlotVariableReference*
    4 user_object SavedUserObject @kind
    5 asset SavedAsset @kind
    6 function SavedFunction @kind
    7 variable SavedVariable @kind
    8 bare_concrete_function SavedBareConcreteFunction @kind
    9 constant SavedConstant @kind
    10 resource SavedResource @kind
    12 captured_tensor CapturedTensor @kind
    11 saveable_objects string:SaveableObject
    13 registered_name string
    14 serialized_user_proto Any
    16 registered_saver string

TrackableObjectGraph.TrackableObject.ObjectReference
    1 node_id int32
    2 local_name string

TrackableObjectGraph.TrackableObject.SlotVariableReference
    1 original_variable_node_id int32
    2 slot_name string
    3 slot_variable_node_id int32

SavedUserObject
    1 identifier string
    2 version VersionDef
    3 metadata string

SavedAsset
    1 asset_file_def_index int32

SavedFunction
    1 concrete_functions string*
    2 function_spec FunctionSpec

FunctionSpec
    1 fullargspec StructuredValue
    2 is_method bool
    5 input_signature StructuredValue
    6 jit_compile int32

SavedVariable
    1 dtype int32
    2 shape TensorShapeProto
    3 trainable bool
    4 synchronization int32
    5 aggregation int32
    6 name string
    7 device string
    8 experimental_distributed_variable_components SavedVariable*

SavedBareConcreteFunction
    1 concrete_function_name string
    2 argument_keywords string*
    3 allowed_positional_arguments int64
    4 function_spec FunctionSpec

SavedConstant
    1 operation string

SavedResource
    1 device string

CapturedTensor
    1 name string
    2 concrete_function string

SaveableObject
    2 save_function int32
    3 restore_function int32

SavedConcreteFunction
    2 bound_inputs int32*
    3 canonicalized_input_signature StructuredValue
    4 output_signature StructuredValue

BundleHeaderProto
    1 num_shards int32
    2 endianness int32
    3 version VersionDef

BundleEntryProto
    1 dtype int32
    2 shape TensorShapeProto
    3 shard_id int32
    4 offset int64
    5 size int64
    6 crc32c fixed32
    7 slices TensorSliceProto*

TensorSliceProto
    1 extent TensorSliceProto.Extent*

TensorSliceProto.Extent
    1 start int64
    2 length int64 @has_length_hack

TrackableObjectGraph
    1 nodes TrackableObjectGraph.TrackableObject*

TrackableObjectGraph.TrackableObject
    1 children TrackableObjectGraph.TrackableObject.ObjectReference*
    2 attributes TrackableObjectGraph.TrackableObject.SerializedTensor*
    3 slot_variables TrackableObjectGraph.TrackableObject.SlotVariableReference*
    4 registered_saver RegisteredSaver
    5 has_checkpoint_values BoolValue

TrackableObjectGraph.TrackableObject.SerializedTensor
    1 name string
    2 full_name string
    3 checkpoint_key string

RegisteredSaver
    1 name string
    2 object_name string

BoolValue
    1 value bool

FingerprintDef
    1 saved_model_checksum uint64
    2 graph_def_program_hash uint64
    3 signature_def_hash uint64
    4 saved_object_graph_hash uint64
    5 checkpoint_hash uint64
    7 uuid string
    6 version VersionDef

VariableDef
    1 variable_name string
    6 initial_value_name string
    2 initializer_name string
    3 snapshot_name string
    4 save_slice_info_def SaveSliceInfoDef
    5 is_resource bool
    7 trainable bool
    8 synchronization int32
    9 aggregation int32

SaveSliceInfoDef
    1 full_name string
    2 full_shape int64*
    3 var_offset int64*
    4 var_shape int64*

OpSharding
    1 type int32
    3 tile_assignment_dimensions int64*
    4 tile_assignment_devices int64*
    6 replicate_on_last_tile_dim bool
    8 last_tile_dims int32*
    9 iota_reshape_dims int64*
    10 iota_transpose_perm int32*

UniformQuantizedConvolutionDimensionNumbersAttr
    1 input_batch_dimension int64
    2 input_feature_dimension int64
    3 input_spatial_dimensions int64*
    4 kernel_input_feature_dimension int64
    5 kernel_output_feature_dimension int64
    6 kernel_spatial_dimensions int64*
    7 output_batch_dimension int64
    8 output_feature_dimension int64
    9 output_spatial_dimensions int64*

DotDimensionNumbers
    1 lhs_contracting_dimensions int64*
    2 rhs_contracting_dimensions int64*
    3 lhs_batch_dimensions int64*
    4 rhs_batch_dimensions int64*

ConvolutionDimensionNumbers
    7 input_batch_dimension int64
    8 input_feature_dimension int64
    11 input_spatial_dimensions int64*
    3 kernel_input_feature_dimension int64
    4 kernel_output_feature_dimension int64
    6 kernel_spatial_dimensions int64*
    9 output_batch_dimension int64
    10 output_feature_dimension int64
    12 output_spatial_dimensions int64*

GatherDimensionNumbers
    1 offset_dims int64*
    2 collapsed_slice_dims int64*
    3 start_index_map int64*
    4 index_vector_dim int64
    5 operand_batching_dims int64*
    6 start_indices_batching_dims int64*

ScatterDimensionNumbers
    1 update_window_dims int64*
    2 inserted_window_dims int64*
    3 scatter_dims_to_operand_dims int64*
    4 index_vector_dim int64
    5 input_batching_dims int64*
    6 scatter_indices_batching_dims int64*

PrecisionConfig
    1 operand_precision int32*
    2 algorithm int32
"""
