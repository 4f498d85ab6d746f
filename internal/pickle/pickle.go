// Package pickle reads and writes Python's pickles without Python: it builds
// plain data of package value, and never looks up, imports or calls what a
// pickle names. It knows nothing of checkpoints, apart from what its callers
// tell it about classes. The contract is at Decode and Encode.
//
// # Normal form
//
// Objects of well-known classes have one form, however Python pickled them, for
// those who print, compare or write them. Encode writes it back as Python does.
//
//	torch.bfloat16, torch.strided, …  the name alone, Call not set; layouts and
//	                                  memory formats too, although pickles make
//	                                  them by a function
//	bytearray(b'ab')                  builtins bytearray, Args ([]byte,)
//	torch.Size([3, 4])                torch Size, Args ((3, 4),)
//	torch.device('cuda', 1)           torch device, Args ("cuda", 1)
//	pathlib.PosixPath('a/b')          pathlib PosixPath, Args ("a/b",); likewise
//	                                  PurePosixPath, Path and PurePath
//	datetime.date(2026, 5, 11)        datetime date, Args (2026, 5, 11)
//	datetime.datetime(…), .time(…)    Args as its repr has them, so seconds and
//	                                  microseconds only if they are not zero;
//	                                  Kwargs "tzinfo" and "fold" if set
//	datetime.timedelta(…)             Kwargs "days", "seconds", "microseconds" if
//	                                  not zero; Args (0,) if all are
//	datetime.timezone(…)              Args (timedelta,) or (timedelta, name)
//	uuid.UUID('…')                    uuid UUID, Args (its 36 characters,)
//	numpy.float64(1.5)                numpy float64, Args (1.5,); likewise every
//	                                  scalar of a number, complex number or bool
//	numpy.dtype('<f8')                numpy dtype, Args ("<f8",)
//	numpy.array(…)                    numpy ndarray, Kwargs "dtype" ("<f8"),
//	                                  "shape" (a Tuple), "order" ("C" or "F") and
//	                                  "data" ([]byte, in that order)
//
// An OrderedDict is a *value.Dict, a set a *value.Set, and a complex number
// a complex128.
//
// An object in any other form is a record like those of unknown classes.
package pickle
