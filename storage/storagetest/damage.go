package storagetest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// Damage is a bit that was flipped: in a record of a zip archive, or in the file itself if
// Record is empty. At may be CutInHalf or Removed instead.
type Damage struct {
	File, Record string
	At           int64
}

const (
	CutInHalf = -1 // the file was cut in half
	Removed   = -2 // the file was removed
)

// otherPlaces is the number of bits that are flipped in a file that is not a zip archive.
const otherPlaces = 16

// RunDamage removes every file of a store and cuts it in half, one after the other, and flips
// one bit of every record of every zip archive and some bits of the other files. After each, it
// opens the checkpoint and reads everything. It returns the number of damages, and the ones that
// changed the state of the checkpoint without an error. If there are more than most, it
// takes every second or third and so on. The store is the same afterwards.
func RunDamage(t *testing.T, root blob.Store, most int, open func(ctx context.Context) (storage.Checkpoint, error)) (n int, unnoticed []Damage) {
	t.Helper()
	want, _, err := stateSums(t.Context(), open)
	must.Do(t, err)
	var all []Damage
	for _, name := range Names(t, root) {
		data := must.Get(blob.ReadAll(t.Context(), root, name, 1<<30))(t)
		all = append(append(all, Damage{File: name, At: CutInHalf}, Damage{File: name, At: Removed}), flipsOf(name, data)...)
	}
	step := (len(all) + most - 1) / most
	for i := 0; i < len(all); i += step {
		n++
		undo := all[i].do(t, root)
		got, notes, err := stateSums(t.Context(), open)
		if err == nil && !maps.Equal(got, want) && (all[i].At != Removed || len(notes) == 0) {
			unnoticed = append(unnoticed, all[i])
		}
		undo()
	}
	return n, unnoticed
}

// do damages a file, and returns a function that restores it.
func (d Damage) do(t *testing.T, s blob.Store) (undo func()) {
	t.Helper()
	was := must.Get(blob.ReadAll(t.Context(), s, d.File, 1<<30))(t)
	now := slices.Clone(was)
	switch d.At {
	case Removed:
		Remove(t, s, d.File)
	case CutInHalf:
		Put(t, s, d.File, now[:len(now)/2])
	default:
		now[d.At] ^= 1 << (d.At % 8)
		Put(t, s, d.File, now)
	}
	return func() { Put(t, s, d.File, was) }
}

// flipsOf returns the bits of a file to flip.
func flipsOf(name string, data []byte) (out []Damage) {
	le := binary.LittleEndian
	for at := 0; ; {
		i := bytes.Index(data[at:], []byte("PK\x03\x04"))
		if i < 0 || at+i+30 > len(data) {
			break
		}
		h := data[at+i:]
		n, extra := int(le.Uint16(h[26:])), int(le.Uint16(h[28:]))
		begin := at + i + 30 + n + extra
		if begin > len(data) {
			break
		}
		record := string(h[30:][:n])
		// The size is in the directory, which follows: the header may have been written before it was known.
		if e := entryOf(data[begin:], record); e != nil {
			if size := int(le.Uint32(e[24:])); size > 0 && size < len(data)-begin {
				out = append(out, Damage{name, record, int64(begin + size/2)})
			}
		}
		at = begin
	}
	if out != nil {
		return out
	}
	for i := range min(otherPlaces, len(data)) {
		out = append(out, Damage{File: name, At: int64(i * len(data) / min(otherPlaces, len(data)))})
	}
	return out
}

// entryOf returns the entry of a record in the first directory of data that has it, or nil. Names
// can be the beginnings of other names.
func entryOf(data []byte, record string) []byte {
	for at := 0; ; {
		i := bytes.Index(data[at:], []byte("PK\x01\x02"))
		if i < 0 || at+i+46 > len(data) {
			return nil
		}
		e := data[at+i:]
		if n := int(binary.LittleEndian.Uint16(e[28:])); len(e) >= 46+n && string(e[46:][:n]) == record {
			return e
		}
		at += i + 4
	}
}

// stateSums returns a digest of each name of a checkpoint, and its notes.
func stateSums(ctx context.Context, open func(ctx context.Context) (storage.Checkpoint, error)) (out map[string]string, notes []string, err error) {
	ck, err := open(ctx)
	if err != nil {
		return nil, nil, err
	}
	defer ck.Close()
	md, err := ck.Metadata(ctx)
	if err == nil {
		err = md.CheckWhole(nil)
	}
	if err != nil {
		return nil, nil, err
	}
	state := plan.State{}
	for i := range md.Entries {
		state[md.Entries[i].FQN] = nil
		if x := md.Entries[i].Tensor; x != nil {
			if state[md.Entries[i].FQN], err = tensor.New(x.DType, x.Shape); err != nil {
				return nil, nil, err
			}
		}
	}
	l := &Loading{
		Planners: []plan.LoadPlanner{&plan.DefaultLoad{NoFlatten: true, RejectUnexpected: true}},
		Readers:  []storage.Reader{storage.ReaderOf(ck, storage.ReadOptions{})},
	}
	if err := l.Run(ctx, []plan.State{state}); err != nil {
		return nil, nil, err
	}
	out = make(map[string]string, len(state))
	for name, v := range state {
		if x, ok := v.(*tensor.Tensor); ok {
			out[name] = fmt.Sprintf("%v %v %x", x.DType(), x.Shape(), sha256.Sum256(x.Contents()))
		} else if _, data, err := value.Encode(v); err == nil {
			out[name] = string(data)
		} else {
			return nil, nil, err
		}
	}
	return out, ck.Storage().Notes, nil
}
