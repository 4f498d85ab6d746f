package pickle

// known are the plain classes and things, by module: to load one makes a value
// and does nothing else.
var known = map[string]map[string]bool{
	"builtins": names("bool", "bytearray", "bytes", "complex", "dict", "Ellipsis", "float", "frozenset", "int", "list",
		"NotImplemented", "object", "range", "set", "slice", "str", "tuple"),
	"argparse":    names("Namespace"),
	"collections": names("Counter", "OrderedDict", "defaultdict", "deque"),
	"copyreg":     names("_reconstructor"),
	"datetime":    names("date", "datetime", "time", "timedelta", "timezone"),
	"decimal":     names("Decimal"),
	"fractions":   names("Fraction"),
	"pathlib":     names("Path", "PosixPath", "PurePath", "PurePosixPath", "PureWindowsPath", "WindowsPath"),
	"types":       names("SimpleNamespace"),
	"uuid":        names("UUID"),
	"zoneinfo":    names("ZoneInfo._unpickle"),
	"numpy": names("bool", "bool_", "complex128", "complex64", "dtype", "float16", "float32", "float64", "int16", "int32",
		"int64", "int8", "ndarray", "uint16", "uint32", "uint64", "uint8"),
	"numpy._core.multiarray": names("_reconstruct", "scalar"),
	"numpy.core.multiarray":  names("_reconstruct", "scalar"),
	"numpy._core.numeric":    names("_frombuffer"),
	"numpy.core.numeric":     names("_frombuffer"),
	"torch": names("Size", "device",
		// dtypes
		"bfloat16", "bits16", "bits1x8", "bits2x4", "bits4x2", "bits8", "bool", "complex128", "complex32", "complex64",
		"float16", "float32", "float4_e2m1fn_x2", "float64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2",
		"float8_e5m2fnuz", "float8_e8m0fnu", "int1", "int16", "int2", "int3", "int32", "int4", "int5", "int6", "int64",
		"int7", "int8", "qint32", "qint8", "quint2x4", "quint4x2", "quint8", "uint1", "uint16", "uint2", "uint3",
		"uint32", "uint4", "uint5", "uint6", "uint64", "uint7", "uint8",
		// kinds of quantisation
		"per_channel_affine", "per_channel_affine_float_qparams", "per_channel_symmetric", "per_tensor_affine",
		"per_tensor_symmetric"),
	"torch.serialization": names("_get_layout"),
}

func names(list ...string) map[string]bool {
	m := make(map[string]bool, len(list))
	for _, n := range list {
		m[n] = true
	}
	return m
}

// Known reports whether the name is that of a plain class, function or thing:
// Encode writes it without being allowed to. Layouts such as torch.strided and
// memory formats such as torch.channels_last are among them.
func Known(module, name string) bool {
	return known[module][name] || module == "torch" && (layouts[name] || memoryFormats[name])
}
