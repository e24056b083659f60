"""Host ops: those that TensorFlow may run at conversion, and those that never run.

Ops in `PURE` depend only on their inputs and attributes (by their `OpDef`s and the kernels in
tensorflow/core/kernels, TensorFlow 2.21, which open no file and keep no state). No other op is ever
run. That an `OpDef` is not `is_stateful` is not enough: those of `ReadFile` and `PyFuncStateless`
are not.
"""

from __future__ import annotations

PURE = frozenset(
    """
    AsString DecodeBase64 DecodeCSV DecodeCompressed DecodeJSONExample DecodePaddedRaw DecodeRaw
    EncodeBase64 Fingerprint ParseExample ParseExampleV2 ParseSequenceExample
    ParseSequenceExampleV2 ParseSingleExample ParseSingleSequenceExample ParseTensor ReduceJoin
    RegexFullMatch RegexReplace SerializeTensor ShardedFilename ShardedFilespec StaticRegexFullMatch
    StaticRegexReplace StringFormat StringJoin StringLength StringLower StringNGrams StringSplit
    StringSplitV2 StringStrip StringToHashBucket StringToHashBucketFast StringToHashBucketStrong
    StringToNumber StringUpper Substr UnicodeDecode UnicodeDecodeWithOffsets UnicodeEncode
    UnicodeScript UnicodeTranscode UnsortedSegmentJoin

    DecodeAndCropJpeg DecodeBmp DecodeGif DecodeImage DecodeJpeg DecodePng DecodeWav DecodeWebP
    EncodeJpeg EncodeJpegVariableQuality EncodePng EncodeWav ExtractJpegShape SobolSample

    CTCBeamSearchDecoder CTCGreedyDecoder DenseToDenseSetOperation DenseToSparseSetOperation
    DenseCountSparseOutput EditDistance RaggedCountSparseOutput RaggedCross
    RaggedGather RaggedRange RaggedTensorToSparse RaggedTensorToTensor SetSize
    SparseCountSparseOutput SparseCross SparseCrossHashed SparseCrossV2 SparseToSparseSetOperation
    """.split()
)

# Ops on tensors of any type that run on the host if the type is string. Ops that pass strings
# through (calls, identities) have rules.
ON_TEXT = frozenset(
    """
    BroadcastTo Concat ConcatV2 Const Equal ExpandDims Fill Gather GatherNd GatherV2 MatrixDiag
    NotEqual OneHot Pack Pad PadV2 RaggedFillEmptyRows Rank Reshape Reverse ReverseV2 ScatterNd
    Select SelectV2 Shape ShapeN Size Slice SparseConcat SparseFillEmptyRows SparseReorder
    SparseSlice SparseSplit SparseToDense Split SplitV Squeeze StridedSlice TensorScatterUpdate Tile
    Transpose Unique UniqueV2 UniqueWithCounts UniqueWithCountsV2 Unpack Where ZerosLike
    """.split()
)

_FILES = "reads or writes files, which a conversion never does"
_PYTHON = "runs Python code, which a conversion never does"
_CODE = "calls code of the process that made the model"
_DEVICES = "communicates with other devices"

# Reasons why ops are refused.
REFUSED: dict[str, str] = {
    **dict.fromkeys(
        """
        FixedLengthRecordReader FixedLengthRecordReaderV2 InitializeTableFromTextFile
        InitializeTableFromTextFileV2 LoadAndRemapMatrix MatchingFiles MergeV2Checkpoints ReadFile
        ReaderRead ReaderReadUpTo ReaderReadUpToV2 ReaderReadV2 Restore RestoreSlice RestoreV2 Save
        SaveSlices SaveV2 TFRecordReader TFRecordReaderV2 TextLineReader TextLineReaderV2
        WholeFileReader WholeFileReaderV2 WriteFile
        """.split(),
        _FILES,
    ),
    **dict.fromkeys(("EagerPyFunc", "PyFunc", "PyFuncStateless"), _PYTHON),
    **dict.fromkeys(("XlaCustomCall", "XlaCustomCallV2"), _CODE),
    **dict.fromkeys(("XlaRecv", "XlaSend"), _DEVICES),
    **dict.fromkeys(
        ("DecodeProtoV2", "EncodeProto"), "reads the definition of its message from a file"
    ),
}

# Ops that read a table which was filled when the model was loaded.
LOOKUPS = frozenset(
    ("LookupTableFind", "LookupTableFindV2", "LookupTableSize", "LookupTableSizeV2")
)
