package torchfile_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
	"github.com/cairn-ckpt/cairn/internal/deep"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/storage/reading"
	"github.com/cairn-ckpt/cairn/storage/storagetest"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

// compareEach describes a checkpoint twice, with pickles that are alike decoded once and with each
// pickle decoded, and returns how the results differ, and the error.
func compareEach(t testing.TB, s blob.Store) (diff string, err error) {
	t.Helper()
	alike, err := torchfile.DescribeFSDP(t.Context(), s, false)
	each, errEach := torchfile.DescribeFSDP(t.Context(), s, true)
	if fmt.Sprint(err) != fmt.Sprint(errEach) {
		return fmt.Sprintf("the error is %v; want %v", err, errEach), err
	}
	if err != nil {
		return "", err
	}

	missing := cmp.Transformer("Error", func(err error) string { return err.Error() })
	if diff := cmp.Diff(each.Metadata, alike.Metadata, missing, cmpopts.EquateEmpty()); diff != "" {
		return diff, nil
	}
	if diff := cmp.Diff(each.Files, alike.Files); diff != "" {
		return diff, nil
	}
	for i := range each.Metadata.Entries {
		e := &each.Metadata.Entries[i]
		if e.Tensor == nil {
			continue
		}
		for k := range e.Tensor.Chunks {
			want, got := must.Get(each.Place(t.Context(), e, k))(t), must.Get(alike.Place(t.Context(), e, k))(t)
			if diff := cmp.Diff(want, got, cmpopts.IgnoreFields(reading.Region{}, "Resolve")); diff != "" {
				return fmt.Sprintf("chunk %d of %s: %s", k, e.FQN, diff), nil
			}
		}
	}
	return "", nil
}

// Files whose pickles are decoded once are described as files that are all decoded.
func TestFSDPAlike(t *testing.T) {
	for _, c := range storagetest.Fixtures(t, "fsdp/*") {
		if strings.Contains(c.Name, "hsdp") {
			continue // a run
		}
		if diff, err := compareEach(t, storagetest.CopyFixture(t, c.Name)); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", c.Name, err, diff)
		}
	}
}

// The files of a large run are a few groups.
func TestFSDPGroups(t *testing.T) {
	for claim, c := range map[string]struct {
		store *mem.Store
		want  int
	}{
		"even parts":                    {fsdpFiles{t: t}.store(), 1},
		"uneven parts":                  {storagetest.CopyFixture(t, "fsdp/fsdp2-tied-2"), 2},
		"parts of two sizes on 4 ranks": {storagetest.CopyFixture(t, "fsdp/fsdp2-tp-4"), 2},
	} {
		names := slices.DeleteFunc(storagetest.Names(t, c.store), func(name string) bool { return !strings.HasPrefix(name, "model_") })
		if got, err := torchfile.Groups(t.Context(), c.store, names); got != c.want || err != nil {
			t.Errorf("%s: %d groups, %v; want %d", claim, got, err, c.want)
		}
	}
}

// pickleOf returns the first record of a file of torch.save, which is the pickle.
func pickleOf(t testing.TB, file []byte) (from, to int) {
	t.Helper()
	le := binary.LittleEndian
	directory := int(le.Uint32(file[len(file)-6:]))
	from = 30 + int(le.Uint16(file[26:])) + int(le.Uint16(file[28:]))
	return from, from + int(le.Uint32(file[directory+24:]))
}

// setPickleSum sets the checksum of the pickle of a file.
func setPickleSum(t testing.TB, file []byte) {
	t.Helper()
	le := binary.LittleEndian
	from, to := pickleOf(t, file)
	sum := crc32.ChecksumIEEE(file[from:to])
	le.PutUint32(file[int(le.Uint32(file[len(file)-6:]))+16:], sum)
	if le.Uint16(file[6:])&8 != 0 {
		le.PutUint32(file[to+4:], sum)
	} else {
		le.PutUint32(file[14:], sum)
	}
}

// Verify notices a header that contradicts the directory. Opening does not read the headers of
// tensors.
func TestFSDPVerifyReadsHeaders(t *testing.T) {
	s := storagetest.CopyFixture(t, "fsdp/fsdp2-tied-2")
	const name = "model_world_size_2_rank_1.pt"
	b := must.Get(blob.ReadAll(t.Context(), s, name, 1<<20))(t)
	at := bytes.Index(b, []byte("/data/2"))
	b[at+1] = 'D'
	storagetest.Put(t, s, name, b)

	ck := must.Get(torchfile.FSDP{}.Open(t.Context(), s))(t)
	defer ck.Close()
	report := must.Get(ck.Verify(t.Context(), nil))(t)
	if len(report.Problems) != 1 || !strings.Contains(fmt.Sprint(report.Problems[0]), "Data/2") {
		t.Errorf("problems %v; want the name in the header", report.Problems)
	}
}

// A pickle of one rank that differs anywhere has the result that it has if each pickle is decoded.
func TestFSDPAlikeDamaged(t *testing.T) {
	var stores []*mem.Store
	for _, name := range []string{"fsdp2-tied-2", "fsdp2-bf16-3", "fsdp2-tp-4", "fsdp1-flat-2", "lora-2", "accelerate-fsdp1-2", "accelerate-fsdp2-2"} {
		stores = append(stores, storagetest.CopyFixture(t, "fsdp/"+name))
	}
	stores = append(stores, fsdpFiles{t: t}.store())
	same, refused := 0, 0
	deep.Check(t, func(r *rapid.T) {
		s := storagetest.CopyOf(t, stores[rapid.IntRange(0, len(stores)-1).Draw(r, "fixture")])
		names := slices.DeleteFunc(storagetest.Names(t, s), func(name string) bool {
			_, holds := torchfile.RecognizeFSDP(name)
			return !holds || strings.HasPrefix(name, "extra_")
		})
		name := names[rapid.IntRange(0, len(names)-1).Draw(r, "file")]
		b := slices.Clone(must.Get(blob.ReadAll(t.Context(), s, name, 1<<20))(t))
		from, to := pickleOf(t, b)
		for range rapid.IntRange(1, 3).Draw(r, "changes") {
			at := rapid.IntRange(from, to-1).Draw(r, "at")
			if rapid.Bool().Draw(r, "an operand") { // the next small integer
				for at+1 < to && b[at] != 'K' {
					at++
				}
				at = min(at+1, to-1)
			}
			b[at] = rapid.Byte().Draw(r, "byte")
		}
		setPickleSum(t, b)
		storagetest.Put(t, s, name, b)
		diff, err := compareEach(t, s)
		if diff != "" {
			r.Errorf("%s: %s", name, diff)
		}
		if err != nil {
			refused++
		} else {
			same++
		}
	})
	t.Logf("%d cases were read, and %d refused", same, refused)
	if refused == 0 {
		t.Errorf("no case was refused")
	}
}
