package formats

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"path"
	"slices"
	"strings"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/deepspeed"
	"github.com/cairn-ckpt/cairn/storage/hf"
	"github.com/cairn-ckpt/cairn/storage/hyper"
	"github.com/cairn-ckpt/cairn/storage/native"
	"github.com/cairn-ckpt/cairn/storage/orbax"
	"github.com/cairn-ckpt/cairn/storage/slime"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/storage/torchfile"
)

// maxListed bounds how many names are examined: a folder above many checkpoints is
// not a checkpoint itself.
const maxListed = 20_000

// rules are the rules by which a folder without a record is recognised, the
// strongest first.
var rules = []struct {
	format    string
	recognize func(name string) (describes, holds bool)
	data      bool // by a file of data; otherwise by a file that describes the checkpoint
}{
	{Native, native.Recognize, false},
	{Native, native.Recognize, true},
	{TorchDCP, torchdcp.Recognize, false},
	{Hyper, hyper.Recognize, false},
	{TorchDCP, torchdcp.Recognize, true},
	{Hyper, hyper.Recognize, true},
	{TorchRanked, torchfile.RecognizeRanked, false},
	{Slime, slime.Recognize, false},
	{HF, hf.Recognize, false},
	{Slime, slime.Recognize, true},
	{HF, hf.Recognize, true},
	{FSDP, torchfile.RecognizeFSDP, true},
	{Torch, torchfile.Recognize, false},
	{Orbax, orbax.RecognizeFile, false},
	{DeepSpeed, deepspeed.Recognize, true},
}

func isTorchFile(name string) bool {
	_, holds := torchfile.Recognize(name)
	return holds
}

// Detect returns the name of the format of the checkpoint at the root of store.
// If there is no checkpoint, the error wraps storage.ErrNotFound. A store with data
// of a format but without the file that makes it a checkpoint has that format: the
// error of opening it names the missing file.
func Detect(ctx context.Context, store blob.Store) (string, error) {
	name, _, _, err := detect(ctx, store)
	return name, err
}

// detect is Detect. auxiliary means that the checkpoint is a file of torch.save that
// libraries write beside a model. roles are the folders of models of verl and SkyRL.
func detect(ctx context.Context, store blob.Store) (name string, auxiliary bool, roles []string, err error) {
	name, err = byRecord(ctx, store)
	if name == "" && err == nil {
		var l *listing
		if l, err = listNames(ctx, store); err == nil {
			name, err = l.format(ctx, store)
			auxiliary, roles = name == Torch && l.auxiliary(), l.roles()
		}
	}
	if name == "" && err == nil {
		err = fmt.Errorf("%w: %s holds no file of a known format", storage.ErrNotFound, store)
	}
	return name, auxiliary, roles, err
}

// CheckOthers returns a *storage.OtherFormatError if Detect finds another format than the
// named one at the root of store, among the files for which own returns false. These files
// belong to the new checkpoint; nil means that no file does. A new checkpoint does not
// replace files of another format in one atomic step: until the new one is complete, or
// even after that, readers might open the wrong one. Files that libraries write beside a
// model, such as training_args.bin, are not a checkpoint. empty means that there are no
// files of any format.
func CheckOthers(ctx context.Context, store blob.Store, format string, own func(name string) bool) (empty bool, err error) {
	l, err := listNames(ctx, store)
	if err != nil {
		return false, err
	}
	return l.checkOthers(ctx, store, format, own)
}

// CheckOthersOf is CheckOthers for a caller that has listed all files of the store.
func CheckOthersOf(ctx context.Context, store blob.Store, names iter.Seq[string], format string, own func(name string) bool) error {
	l := &listing{whole: true}
	for name := range names {
		l.add(name)
	}
	_, err := l.checkOthers(ctx, store, format, own)
	return err
}

func (l *listing) checkOthers(ctx context.Context, store blob.Store, format string, own func(name string) bool) (empty bool, err error) {
	if own != nil {
		l.root, l.below = slices.DeleteFunc(l.root, own), slices.DeleteFunc(l.below, own)
	}

	found, err := l.others(ctx, store)
	switch {
	case errors.Is(err, storage.ErrNotFound):
		return false, nil
	case err != nil || found == "" || found == format:
		return found == "" && l.whole, err
	}

	return false, &storage.OtherFormatError{Where: store.String(), Found: found, Format: format}
}

// others is Detect for CheckOthers. In object storage it takes one request if there is no
// checkpoint.
func (l *listing) others(ctx context.Context, store blob.Store) (string, error) {
	metadata := torchdcp.Files().Records[0]
	switch {
	case !l.whole:
		if name, err := byRecord(ctx, store); name != "" || err != nil {
			return name, err
		}
	case slices.Contains(l.root, native.Files().Records[0]):
		return Native, nil
	case slices.Contains(l.root, metadata):
		return dialect(ctx, store, metadata)
	}

	name, err := l.format(ctx, store)
	if name == Torch && l.auxiliary() {
		return "", err
	}
	return name, err
}

// isModel reports whether a file of that name may hold a whole checkpoint of torch.save.
func isModel(name string) bool { return isTorchFile(name) && !torchfile.Auxiliary(name) }

// byRecord looks for the files that only one format has, without a list.
func byRecord(ctx context.Context, store blob.Store) (string, error) {
	if ok, err := exists(ctx, store, native.Files().Records[0]); ok || err != nil {
		return Native, err
	}
	metadata := torchdcp.Files().Records[0] // hyper_parallel uses the same name
	if ok, err := exists(ctx, store, metadata); !ok || err != nil {
		return "", err
	}
	return dialect(ctx, store, metadata)
}

func exists(ctx context.Context, store blob.Store, name string) (bool, error) {
	_, err := store.Stat(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	return err == nil, err
}

// dialect distinguishes the two kinds of metadata files by the name of the module at the
// beginning.
func dialect(ctx context.Context, store blob.Store, name string) (string, error) {
	head, err := readHead(ctx, store, name, 4096)
	if err != nil {
		return "", err
	}
	if bytes.Contains(head, []byte("hyper_parallel.")) {
		return Hyper, nil
	}
	return TorchDCP, nil
}

// readHead returns the first n bytes of an object, or all of a shorter one.
func readHead(ctx context.Context, store blob.Store, name string, n int64) ([]byte, error) {
	r, err := store.Open(ctx, name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	p := make([]byte, min(n, r.Size()))
	return p, r.ReadAt(ctx, p, 0)
}

// listing is names of the files in a store.
type listing struct {
	root, below []string // at the root of the store, and one folder below
	deeper      bool     // there are files further below
	whole       bool     // no names are left out
}

// listNames lists at most maxListed files of a store.
func listNames(ctx context.Context, store blob.Store) (*listing, error) {
	l := &listing{whole: true}
	seen := 0
	for info, err := range store.List(ctx, "") {
		if err != nil {
			return nil, err
		}
		if seen++; seen > maxListed {
			l.whole = false
			break
		}
		l.add(info.Name)
	}

	return l, nil
}

func (l *listing) add(name string) {
	if name == storage.NotesFile {
		return
	}
	switch strings.Count(name, "/") {
	case 0:
		l.root = append(l.root, name)
	case 1:
		l.below = append(l.below, name)
	default:
		l.deeper = true
	}
}

// format detects the format by the names of files, or returns "".
func (l *listing) format(ctx context.Context, store blob.Store) (string, error) {
	names := l.root
	if len(names) == 1 && len(l.below) == 0 && path.Ext(names[0]) != ".json" {
		if err := otherKind(ctx, store, names[0]); err != nil {
			return "", err
		}
	}

	several := (len(names)+len(l.below) > 1 || l.deeper) && !slices.Contains(names, "pytorch_model.bin")
	for _, r := range rules {
		found := slices.ContainsFunc(names, func(name string) bool {
			describes, holds := r.recognize(name)
			return describes && !r.data || holds && r.data
		})
		switch {
		case !found:
			continue
		case r.format == DeepSpeed && !several: // one of its files by itself
			continue
		case r.format == FSDP && isSingle(store):
			continue
		case r.format == TorchRanked: // other programs have such files, too
			if ok, err := torchfile.IsRanked(ctx, store, names); err != nil {
				return "", err
			} else if !ok {
				continue
			}
		case r.format == Slime && !r.data: // the index of a full version has the same name
			if ok, err := slime.IsDelta(ctx, store); err != nil {
				return "", err
			} else if !ok {
				continue
			}
		}

		return r.format, nil
	}

	if several {
		all := slices.Concat(l.below, names)
		if err := unsupported(ctx, store, all); err != nil {
			return "", err
		}
		if !slices.ContainsFunc(names, isTorchFile) && orbax.Recognize(all) {
			return Orbax, nil
		}
	}

	if len(names) == 1 {
		return byContent(ctx, store, names[0])
	}
	if ok, err := torchfile.IsRanked(ctx, store, names); ok || err != nil {
		return TorchRanked, err
	}

	if slices.ContainsFunc(names, isTorchFile) {
		if _, err := torchfile.Find(ctx, store); err != nil {
			return "", err
		}
		return Torch, nil
	}
	return "", nil
}

// isSingle reports whether a store is one file.
func isSingle(store blob.Store) bool {
	_, ok := store.(*blob.Single)
	return ok
}

// auxiliary reports whether the only files of torch.save at the root are files that
// libraries write beside a model.
func (l *listing) auxiliary() bool {
	if !slices.ContainsFunc(l.root, isTorchFile) {
		return false
	}
	roles := l.roles()
	return !slices.ContainsFunc(l.root, func(name string) bool {
		return isModel(name) && (len(roles) == 0 || !besideRoles[name])
	})
}

// besideRoles are the files of torch.save that verl and SkyRL keep beside the folders of the
// models that they train.
var besideRoles = map[string]bool{"data.pt": true, "trainer_state.pt": true}

// roles returns the folders with a model in the format FSDP, such as actor and critic.
func (l *listing) roles() []string {
	var out []string
	for _, name := range l.below {
		dir, file := path.Split(name)
		dir = strings.TrimSuffix(dir, "/")
		if _, ok := torchfile.RecognizeFSDP(file); ok && !slices.Contains(out, dir) {
			out = append(out, dir)
		}
	}
	slices.Sort(out)
	return out
}

// otherKind returns an error if the file is of a kind that no format uses. It ignores the
// name of the file.
func otherKind(ctx context.Context, store blob.Store, name string) error {
	r, err := store.Open(ctx, name)
	if err != nil {
		return err
	}
	defer r.Close()

	kind, err := storage.OtherKind(ctx, r)
	if err == nil && kind != "" {
		err = fmt.Errorf("%w: %s is %s", storage.ErrNotFound, name, kind)
	}
	return err
}

// byContent detects the format by the first bytes of the only file.
func byContent(ctx context.Context, store blob.Store, name string) (string, error) {
	head, err := readHead(ctx, store, name, 16)
	if err != nil {
		return "", err
	}

	switch {
	case bytes.HasPrefix(head, []byte("PK\x03\x04")), bytes.HasPrefix(head, []byte{0x80, 0x02}):
		return Torch, nil
	case len(head) > 8 && head[8] == '{' && binary.LittleEndian.Uint64(head) < 1<<32:
		return HF, nil
	case isTorchFile(name):
		return Torch, nil // the error of opening it is clearer
	}

	return "", nil
}

// UnsupportedError reports a checkpoint of a format that cairn does not read. It
// wraps storage.ErrNotFound.
type UnsupportedError struct {
	// Where is the place, Format the name of the format, and File the file by
	// which cairn recognised it.
	Where, Format, File string
	// Hint describes how to get a checkpoint that cairn reads.
	Hint string
}

// Error names the format.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%v that cairn reads: %s is a checkpoint of %s, by its file %s", storage.ErrNotFound, e.Where, e.Format, e.File)
}

// Unwrap returns storage.ErrNotFound.
func (e *UnsupportedError) Unwrap() error { return storage.ErrNotFound }

const (
	hintFlax = "restore it with Flax, and save its arrays as safetensors"
	hintZarr = "Megatron's own tools convert it to the torch_dist format, which cairn reads as torchdcp"
)

// unsupported returns an *UnsupportedError if the files, by their names with at
// most one folder above them, belong to a format that is known by name only.
func unsupported(ctx context.Context, store blob.Store, names []string) error {
	found := func(format, file, hint string) error {
		return &UnsupportedError{store.String(), format, file, hint}
	}
	for _, name := range names {
		dir, base := path.Split(name)
		switch {
		case base == ".zarray" && dir != "" && slices.Contains(names, "common.pt"):
			return found("Megatron in its zarr format", name, hintZarr)
		case name == "metadata.json", name == "checkpoint":
			head, err := readHead(ctx, store, name, 4096)
			if err != nil {
				return err
			}
			if name == "metadata.json" && bytes.Contains(head, []byte(`"sharded_backend"`)) && bytes.Contains(head, []byte(`"zarr"`)) {
				return found("Megatron in its zarr format", name, hintZarr)
			}
			if name == "checkpoint" && isMsgpackMap(head) {
				return found("Flax", name, hintFlax)
			}
		}
	}

	return nil
}

// isMsgpackMap reports whether head is the beginning of a map with entries in
// MessagePack. Texts and pickles never begin like this.
func isMsgpackMap(head []byte) bool {
	return len(head) > 0 && (head[0] > 0x80 && head[0] <= 0x8f || head[0] == 0xde || head[0] == 0xdf)
}
