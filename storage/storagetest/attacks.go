package storagetest

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// Attacks returns files of torch.save that take much more memory or time than their size, if
// a reader believes them: pickles that repeat their contents, archives that expand, and sizes
// that are too large. No reader can load all of any of them.
func Attacks(t testing.TB) map[string][]byte {
	rep, text := strings.Repeat, func(s string) string { return fmt.Sprintf("X%s%s", le32(len(s)), s) }
	double := func(first, again string) string { // 64 times, from the value on the stack
		var b strings.Builder
		b.WriteString(first + "q\x00")
		for i := range 64 {
			fmt.Fprintf(&b, again, fmt.Sprintf("h%c", i))
			fmt.Fprintf(&b, "q%c", i+1)
		}
		return b.String() + "."
	}

	dict := func(v string) string { return "}" + text("a") + v + "s." }
	out := map[string][]byte{
		"lists that double":        archiveOf(t, dict(strings.TrimSuffix(double("](NNe", "0](%[1]s%[1]se"), "."))),
		"dicts that double":        archiveOf(t, double("}"+text("x")+"Ns", "0}("+text("a")+"%[1]s"+text("b")+"%[1]su")),
		"tuples that double":       archiveOf(t, dict(strings.TrimSuffix(double("N", "0%[1]s%[1]s\x86"), "."))),
		"lists of tensors, double": archiveOf(t, dict(strings.TrimSuffix(double("]("+tensorOf(4, "K\x04\x85", "K\x01\x85")+"e", "0](%[1]s%[1]se"), "."))),
		"nested tuples":            archiveOf(t, dict(")"+rep("\x85", 1<<20))),
		"nested dicts":             archiveOf(t, rep("}"+text("a"), 1<<16)+"N"+rep("s", 1<<16)+"."),
		"an expanded tensor":       archiveOf(t, dict(tensorOf(4, long(1<<40)+"\x85", "K\x00\x85"))),
		"an expanded matrix":       archiveOf(t, dict(tensorOf(4, long(1<<30)+long(1<<30)+"\x86", "K\x00K\x00\x86"))),
		"a shape that overflows":   archiveOf(t, dict(tensorOf(4, long(1<<62)+long(1<<62)+"\x86", "K\x01K\x01\x86"))),
		"a storage of 2^60":        archiveOf(t, dict(tensorOf(1<<60, "K\x04\x85", "K\x01\x85"))),
		"an integer of 2^31 bytes": archiveOf(t, dict("\x8b\xff\xff\xff\x7f")),
		"one tensor again":         archiveOf(t, manyTensors(1<<12)),
	}
	out["a deflated pickle"] = packed(t, zip.Deflate, map[string]string{"data.pkl": dict(text(rep("a", 32<<20))), "version": "3\n"})
	storage := map[string]string{"data.pkl": dict(tensorOf(8<<20, long(8<<20)+"\x85", "K\x01\x85")), "version": "3\n", "data/0": rep("\x00", 32<<20)}
	out["a deflated storage"] = packed(t, zip.Deflate, storage)
	out["overlapping records"] = overlapping(t)
	out["many records"] = records(t, 1<<15)
	return out
}

// Attack returns an archive of values that are nested, doubled and expanded at random.
func Attack(t testing.TB, r *rand.Rand) []byte {
	a := &attacker{Rand: r, elems: 1 << r.IntN(16)}
	records := map[string]string{"version": "3\n", "data/0": strings.Repeat("\x01", 4*int(a.elems))}
	if r.IntN(8) == 0 {
		a.elems = a.Int64N(1 << a.IntN(63))
	}

	records["data.pkl"] = "\x80\x02}" + a.text() + a.value(4) + "s."
	method := zip.Store
	if r.IntN(8) == 0 {
		method = zip.Deflate
	}
	return packed(t, method, records)
}

// attacker makes pickles.
type attacker struct {
	*rand.Rand
	elems int64 // of the storage
	memo  int   // the next free number
}

// value returns the pickle of a value of at most so many levels, beside the nested and doubled ones.
func (a *attacker) value(levels int) string {
	kind := a.IntN(9)
	if levels == 0 {
		kind += 4
	}

	switch kind {
	case 0:
		n := 1 << a.IntN(18)
		around := [][2]string{{"", "\x85"}, {"](", "e"}, {"]", "a"}, {"}" + a.text(), "s"}}[a.IntN(4)]
		return strings.Repeat(around[0], n) + a.value(levels-1) + strings.Repeat(around[1], n)
	case 1, 2:
		put, get := func() string { return "r" + le32(a.memo) }, func() string { return "j" + le32(a.memo) }
		out := a.value(levels-1) + put()
		for range a.IntN(100) {
			last, key := get(), a.text()
			a.memo++
			out += "0" + []string{"](" + last + last + "e", last + last + "\x86", "}(" + key + last + "X\x01\x00\x00\x00b" + last + "u"}[a.IntN(3)] + put()
		}
		a.memo++
		return out
	case 3:
		out := "]("
		for range a.IntN(8) {
			out += a.value(levels - 1)
		}
		return out + "e"
	case 4, 5, 6:
		size := func() int64 { return a.Int64N(1 << a.IntN(63)) }
		rows, columns, strides := size(), a.Int64N(a.elems+1), long(0)+long(1)
		if rows > 16 {
			rows |= 1 << 40 // above every limit: a tensor of a permitted GiB would only take time
		}
		if a.IntN(4) == 0 {
			columns, strides = size(), long(size())+long(size())
		}
		return tensorOf(a.elems, long(rows)+long(columns)+"\x86", strides+"\x86")
	case 7:
		return a.text()
	}

	return "N"
}

// text returns the pickle of a text.
func (a *attacker) text() string {
	n := 1 << a.IntN(8)
	return "X" + le32(n) + strings.Repeat("a", n)
}

func le32(n int) string { return string(binary.LittleEndian.AppendUint32(nil, uint32(n))) }

// long returns the pickle of an integer of 8 bytes.
func long(n int64) string {
	return "\x8a\x08" + string(binary.LittleEndian.AppendUint64(nil, uint64(n)))
}

// tensorOf returns the pickle of a float32 tensor of that shape and strides, in a storage of
// n elements, which is the record data/0.
func tensorOf(n int64, shape, strides string) string {
	storage := "(X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpu" + long(n) + "tQ"
	return "ctorch._utils\n_rebuild_tensor_v2\n(" + storage + "K\x00" + shape + strides + "\x89ccollections\nOrderedDict\n)RtR"
}

// manyTensors returns the pickle of a list of n tensors that repeat the four elements of one
// storage 2^20 times each.
func manyTensors(n int) string {
	var b strings.Builder
	b.WriteString("](")
	for range n {
		b.WriteString(tensorOf(4, long(1<<20)+"K\x04\x86", "K\x00K\x01\x86"))
	}
	return b.String() + "e."
}

// archiveOf returns a file with that pickle and a storage of 16 bytes.
func archiveOf(t testing.TB, pickle string) []byte {
	return packed(t, zip.Store, map[string]string{"data.pkl": "\x80\x02" + pickle, "version": "3\n", "data/0": strings.Repeat("\x01", 16)})
}

// packed returns an archive.
func packed(t testing.TB, method uint16, records map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range []string{"data.pkl", "version", "data/0"} {
		if data, ok := records[name]; ok {
			w := must.Get(z.CreateHeader(&zip.FileHeader{Name: "archive/" + name, Method: method}))(t)
			must.Get(w.Write([]byte(data)))(t)
		}
	}

	must.Do(t, z.Close())
	return b.Bytes()
}

// overlapping returns an archive with a record that is large because it includes the
// records after it.
func overlapping(t testing.TB) []byte {
	b := archiveOf(t, "}.")
	at := bytes.Index(b, []byte("PK\x01\x02"))
	binary.LittleEndian.PutUint32(b[at+20:], uint32(at-60))
	binary.LittleEndian.PutUint32(b[at+24:], uint32(at-60))
	return b
}

// records returns an archive of n records.
func records(t testing.TB, n int) []byte {
	t.Helper()
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for i := range n {
		must.Get(z.CreateHeader(&zip.FileHeader{Name: fmt.Sprintf("archive/data/%d", i)}))(t)
	}
	must.Do(t, z.Close())
	return b.Bytes()
}
