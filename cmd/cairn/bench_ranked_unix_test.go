//go:build unix

package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/blob/file"
	"github.com/cairn-ckpt/cairn/internal/work"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

var (
	benchRanks  = flag.Int("ranks", 64, "how many ranks BenchmarkRanked saves")
	benchParams = flag.Int("params", 100_000, "how many parameters BenchmarkRanked saves")
)

func init() {
	programs["save-ranked"], programs["open-ranked"] = saveRanked, openRanked
}

// BenchmarkRanked measures how long a run of verl takes to open: a file of torch.save for each rank, each
// with a part of every parameter. A file takes about 500 bytes for each parameter.
func BenchmarkRanked(b *testing.B) {
	for _, c := range []string{"even", "uneven"} {
		dir := filepath.Join(b.TempDir(), c)
		run(b, "save-ranked", dir, strconv.Itoa(*benchRanks), strconv.Itoa(*benchParams), strconv.FormatBool(c == "uneven"))
		b.Run(c, func(b *testing.B) { benchProgram(b, nil, "open-ranked", dir) })
		b.Run(c+"-ls", func(b *testing.B) { benchProgram(b, nil, "cairn", "ls", dir) })
		_ = os.RemoveAll(dir)
	}
}

// openRanked is a program that opens a checkpoint: open-ranked DIR.
func openRanked() {
	err := func() error {
		ctx := context.Background()
		store, err := file.Open(os.Args[1], nil)
		if err != nil {
			return err
		}
		ck, err := torchfile.FSDP{}.Open(ctx, store)
		if err != nil {
			return err
		}
		_, err = ck.Metadata(ctx)
		return err
	}()
	exit(err)
}

// saveRanked is a program that writes a model as PyTorch 2.14 writes it for verl: save-ranked DIR RANKS
// PARAMS UNEVEN. If UNEVEN is true, not all parameters have a multiple of RANKS rows.
func saveRanked() {
	dir := os.Args[1]
	var ranks, params int
	var uneven bool
	_, err := fmt.Sscan(strings.Join(os.Args[2:], " "), &ranks, &params, &uneven)
	if err == nil {
		err = os.MkdirAll(dir, 0o755)
	}
	if err == nil {
		err = work.Each(context.Background(), ranks, runtime.NumCPU(), func(_ context.Context, rank int) error {
			return saveRank(dir, rank, ranks, params, uneven)
		})
	}
	exit(err)
}

func exit(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// saveRank writes the file of a rank.
func saveRank(dir string, rank, ranks, params int, uneven bool) error {
	folder := fmt.Sprintf("model_world_size_%d_rank_%d", ranks, rank)
	f, err := os.Create(filepath.Join(dir, folder+".pt"))
	if err != nil {
		return err
	}
	defer f.Close()

	const columns = 4
	m := &modelPickle{known: map[string]int{}, rank: rank, ranks: ranks, random: rand.New(rand.NewPCG(1, uint64(rank)))}
	m.begin()
	var sizes []int
	for i := range params {
		rows := 2 * ranks
		if uneven && i%10 == 5 {
			rows = 2*ranks - ranks/2 // the last quarter of the ranks has none
		} else if uneven && i%10 == 7 {
			rows = ranks + 1 // one rank has half of the rows of the ranks before it
		}
		each := (rows + ranks - 1) / ranks
		local := max(0, min(each, rows-rank*each))
		sizes = append(sizes, 2*columns*local)
		m.param(fmt.Sprintf("model.layers.%d.mlp.experts.%d.gate_proj.weight", i/512, i%512), rows, columns, local, len(sizes)-1)
		if i == 0 {
			sizes = append(sizes, 4*ranks) // the ranks of the mesh
		}
	}

	w := &zipFile{w: bufio.NewWriterSize(f, 1<<20), folder: folder}
	w.record("data.pkl", m.end())
	w.record(".format_version", []byte("1"))
	w.record(".storage_alignment", []byte("64"))
	w.record("byteorder", []byte("little"))
	for i, n := range sizes {
		data := make([]byte, n)
		for j := range data {
			data[j] = byte(m.random.Uint32())
		}
		w.record("data/"+strconv.Itoa(i), data)
	}
	w.record("version", []byte("3\n"))
	w.record(".data/serialization_id", fmt.Appendf(nil, "%040d", rank))
	if err := w.end(); err != nil {
		return err
	}
	return f.Close()
}

// modelPickle writes the pickle of a model as Python does: every string, tuple and object gets a number.
type modelPickle struct {
	b           []byte
	known       map[string]int // numbers of strings and globals
	n           int
	rank, ranks int
	random      *rand.Rand
}

func (m *modelPickle) put() int {
	if m.n < 256 {
		m.b = append(m.b, 'q', byte(m.n))
	} else {
		m.b = binary.LittleEndian.AppendUint32(append(m.b, 'r'), uint32(m.n))
	}
	m.n++
	return m.n - 1
}

func (m *modelPickle) get(n int) {
	if n < 256 {
		m.b = append(m.b, 'h', byte(n))
	} else {
		m.b = binary.LittleEndian.AppendUint32(append(m.b, 'j'), uint32(n))
	}
}

// ops writes opcodes. A '#' stands for a number of the value before it.
func (m *modelPickle) ops(ops string) {
	for _, op := range []byte(ops) {
		if op == '#' {
			m.put()
		} else {
			m.b = append(m.b, op)
		}
	}
}

// fresh writes a string that is not shared.
func (m *modelPickle) fresh(s string) {
	m.b = binary.LittleEndian.AppendUint32(append(m.b, 'X'), uint32(len(s)))
	m.b = append(m.b, s...)
	m.put()
}

// str writes a string that is shared, and global a name that is.
func (m *modelPickle) str(s string) {
	if n, ok := m.known[s]; ok {
		m.get(n)
		return
	}
	m.known[s] = m.n
	m.fresh(s)
}

func (m *modelPickle) global(s string) {
	if n, ok := m.known[s]; ok {
		m.get(n)
		return
	}
	m.known[s] = m.n
	m.b = append(append(append(m.b, 'c'), strings.Replace(s, " ", "\n", 1)...), '\n')
	m.put()
}

func (m *modelPickle) ints(all ...int) {
	for _, n := range all {
		switch {
		case n < 1<<8:
			m.b = append(m.b, 'K', byte(n))
		case n < 1<<16:
			m.b = binary.LittleEndian.AppendUint16(append(m.b, 'M'), uint16(n))
		default:
			m.b = binary.LittleEndian.AppendUint32(append(m.b, 'J'), uint32(n))
		}
	}
}

// hash writes the hash of an object, which differs in every process.
func (m *modelPickle) hash() {
	b := binary.LittleEndian.AppendUint64(nil, uint64(m.random.Int64()>>2))
	n := 8
	for n > 1 && (b[n-1] == 0 && b[n-2] < 0x80) {
		n--
	}
	m.b = append(append(m.b, 0x8a, byte(n)), b[:n]...)
}

func (m *modelPickle) begin() {
	m.ops("\x80\x02")
	m.global("collections OrderedDict")
	m.ops(")R#(")
}

// end ends the pickle. The state of the OrderedDict is the metadata of the modules.
func (m *modelPickle) end() []byte {
	m.ops("u}#")
	m.str("_metadata")
	m.global("collections OrderedDict")
	m.ops(")R#sb.")
	return m.b
}

// storage writes the tensor of a storage.
func (m *modelPickle) storage(class string, key, elements int, shape, strides []int) {
	m.global("torch._utils _rebuild_tensor_v2")
	m.ops("((")
	m.str("storage")
	m.global("torch " + class)
	m.fresh(strconv.Itoa(key))
	m.fresh(fmt.Sprintf("cuda:%d", m.rank%8))
	m.ints(elements)
	m.ops("t#QK\x00")
	for _, v := range [][]int{shape, strides} {
		m.ints(v...)
		m.tuple(len(v))
	}
	m.ops("\x89")
	m.global("collections OrderedDict")
	m.ops(")R#t#R#")
}

// tuple writes a tuple of at most three values.
func (m *modelPickle) tuple(n int) { m.b = append(m.b, 0x84+byte(n)); m.put() }

// param writes a parameter of rows × columns, of which the rank has some rows.
func (m *modelPickle) param(name string, rows, columns, local, key int) {
	const spec = "torch.distributed.tensor._dtensor_spec "
	m.fresh(name)
	m.global("torch._tensor _rebuild_from_type_v2")
	m.ops("(")
	m.global("torch._utils _rebuild_wrapper_subclass")
	m.global("torch.distributed.tensor DTensor")
	m.ops("(")
	m.global("torch.distributed.tensor DTensor")
	m.global("torch bfloat16")
	m.ints(rows, columns)
	m.tuple(2)
	m.ints(columns, 1)
	m.tuple(2)
	m.ints(0)
	if n, ok := m.known["(strided)"]; ok {
		m.get(n)
	} else {
		m.global("torch.serialization _get_layout")
		m.str("torch.strided")
		m.tuple(1)
		m.ops("R")
		m.known["(strided)"] = m.put()
	}
	m.global("torch device")
	m.fresh("cuda")
	m.tuple(1)
	m.ops("R#\x89t#N}#(")

	m.str("_local_tensor")
	m.storage("BFloat16Storage", key, local*columns, []int{local, columns}, []int{columns, 1})
	m.str("_spec")
	m.global(spec + "DTensorSpec")
	m.ops(")\x81#}#(")
	m.str("mesh")
	if n, ok := m.known["(mesh)"]; ok {
		m.get(n)
	} else {
		m.mesh(key + 1)
	}
	m.str("placements")
	m.global("torch.distributed.tensor.placement_types Shard")
	m.ops(")\x81#}#")
	m.str("dim")
	m.ops("K\x00sb")
	m.tuple(1)
	m.str("tensor_meta")
	m.global(spec + "TensorMeta")
	m.global("torch Size")
	m.ints(rows, columns)
	m.tuple(2)
	m.tuple(1)
	m.ops("R#")
	m.ints(columns, 1)
	m.tuple(2)
	m.global("torch bfloat16")
	m.tuple(3)
	m.ops("\x81#")
	m.str("shard_order")
	m.global(spec + "ShardOrderEntry")
	m.ops("K\x00K\x00")
	m.tuple(1)
	m.tuple(2)
	m.ops("\x81#")
	m.tuple(1)
	m.str("use_strided_shard_as_shard_order")
	m.ops("\x89")
	m.str("_hash")
	m.hash()
	m.ops("ubu")
	m.tuple(2)
	m.ops("t#R#")
}

// mesh writes the mesh of all ranks.
func (m *modelPickle) mesh(key int) {
	const layout = "torch.distributed._mesh_layout "
	m.global("torch.distributed.device_mesh DeviceMesh")
	m.ops(")\x81")
	m.known["(mesh)"] = m.put()
	m.ops("}#(")
	m.str("_device_type")
	m.str("cuda")
	m.str("_layout")
	m.global(layout + "_MeshLayout")
	m.ops(")\x81#}#")
	m.str("axes")
	m.global(layout + "_FlatLayout")
	m.ops(")\x81#}#(")
	m.str("shape")
	m.ints(m.ranks)
	m.tuple(1)
	m.str("stride")
	m.ints(1)
	m.tuple(1)
	m.ops("ub")
	m.tuple(1)
	m.ops("sb")
	m.str("_rank_map")
	m.storage("IntStorage", key, m.ranks, []int{m.ranks}, []int{1})
	m.str("_mesh_dim_names")
	m.str("fsdp")
	m.tuple(1)
	m.str("_root_mesh")
	m.ops("N")
	m.str("_flatten_rank_map")
	m.ops("(")
	for i := range m.ranks {
		m.ints(i)
	}
	m.ops("t#")
	m.str("_rank")
	m.ints(m.rank)
	m.str("_coordinate_on_dim")
	m.ints(m.rank)
	m.tuple(1)
	m.str("_hash")
	m.hash()
	m.ops("ub")
}

// zipFile writes a zip file as PyTorch does: sizes follow the bytes, which begin at a multiple of 64.
type zipFile struct {
	w         *bufio.Writer
	folder    string
	at, n     int
	directory []byte
	err       error
}

func (z *zipFile) write(b []byte) {
	if z.err == nil {
		_, z.err = z.w.Write(b)
	}
	z.at += len(b)
}

func (z *zipFile) record(name string, data []byte) {
	le := binary.LittleEndian
	name = z.folder + "/" + name
	header, crc := z.at, crc32.ChecksumIEEE(data)
	pad := 64 - (header+30+len(name)+4)%64
	h := append([]byte("PK\x03\x04\x00\x00\x08\x08"), make([]byte, 18)...)
	h = le.AppendUint16(le.AppendUint16(h, uint16(len(name))), uint16(4+pad))
	h = append(append(h, name...), "FB"...)
	h = append(le.AppendUint16(h, uint16(pad)), strings.Repeat("Z", pad)...)
	z.write(h)
	z.write(data)
	sums := le.AppendUint32(le.AppendUint32(le.AppendUint32(nil, crc), uint32(len(data))), uint32(len(data)))
	z.write(append([]byte("PK\x07\x08"), sums...))

	d := append(append(z.directory, "PK\x01\x02\x00\x00\x00\x00\x08\x08\x00\x00\x00\x00\x00\x00"...), sums...)
	d = le.AppendUint16(d, uint16(len(name)))
	d = le.AppendUint32(append(d, make([]byte, 12)...), uint32(header))
	z.directory = append(d, name...)
	z.n++
}

// end writes the directory and the two end records.
func (z *zipFile) end() error {
	le := binary.LittleEndian
	at, size := uint64(z.at), uint64(len(z.directory))
	z.write(z.directory)
	e := le.AppendUint64([]byte("PK\x06\x06"), 44)
	e = append(e, 0x1e, 3, 45, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	e = le.AppendUint64(le.AppendUint64(e, uint64(z.n)), uint64(z.n))
	e = le.AppendUint64(le.AppendUint64(e, size), at)
	e = le.AppendUint64(append(e, "PK\x06\x07\x00\x00\x00\x00"...), at+size)
	e = append(e, 1, 0, 0, 0)
	e = append(e, "PK\x05\x06\x00\x00\x00\x00"...)
	n := uint16(min(z.n, 0xffff))
	e = le.AppendUint16(le.AppendUint16(e, n), n)
	e = le.AppendUint32(le.AppendUint32(e, uint32(size)), uint32(at))
	z.write(append(e, 0, 0))
	if z.err != nil {
		return z.err
	}
	return z.w.Flush()
}
