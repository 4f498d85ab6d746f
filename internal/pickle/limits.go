package pickle

// Limits bound what a pickle may ask for. A zero field means its default.
type Limits struct {
	// Depth bounds how deeply values lie in each other. Zero: 1000.
	Depth int
	// Memo bounds the numbers of the memo. Zero: 64 Mi.
	Memo int
	// Objects bounds the containers and objects: everything that takes more
	// memory than it took bytes in the pickle. Zero: 16 Mi.
	Objects int
	// Bytes bounds the size of the value when it is written out in full, with
	// every shared part wherever it stands, at 16 bytes a value and one for each
	// byte of a string: a walk over the value that does not notice sharing ends
	// as soon. Zero: 256 MiB and 32 times the size of the pickle.
	Bytes int64
}

func (l *Limits) withDefaults(input int) Limits {
	var out Limits
	if l != nil {
		out = *l
	}
	if out.Depth <= 0 {
		out.Depth = 1000
	}
	if out.Memo <= 0 {
		out.Memo = 64 << 20
	}
	if out.Objects <= 0 {
		out.Objects = 16 << 20
	}
	if out.Bytes <= 0 {
		out.Bytes = 256<<20 + 32*int64(input)
	}
	return out
}

// maxBig bounds the bytes of an integer: printing takes more than linear time,
// and package value stores at most 10,000 digits.
const maxBig = 4096
