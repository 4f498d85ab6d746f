package saver

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/background/upload"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/run/versions"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/tensor"
	"github.com/cairn-ckpt/cairn/value"
)

// messageVersion is the version of the messages.
const messageVersion = 1

const (
	// maxFrame bounds the bytes of one message.
	maxFrame = 1 << 30
	// frameStep is how much of a message is allocated before more of it has arrived.
	frameStep = 1 << 20
)

var (
	// ErrMessage means that the other process has sent something that is not a message
	// of this version, or one that makes no sense.
	ErrMessage = errors.New("malformed message")
	// ErrSaver means that the saver process of this rank or of another one has ended.
	ErrSaver = errors.New("the saver process has ended")
)

// Codes of errors: codeSaver means that a saver process has ended, codeTrainer that a
// trainer has.
const (
	codeSaver   = "saver.ended"
	codeTrainer = "saver.trainer" // among savers only; see saverError
	codeGone    = "group.ErrGone"
	codeLeft    = "group.ErrLeft"
)

// The codes of errors in messages. docs/saver.md lists them.
func init() {
	for code, err := range map[string]error{
		"saver.message":    ErrMessage,
		codeSaver:          ErrSaver,
		codeTrainer:        errTrainerGone,
		"saver.replaced":   ErrReplaced,
		"stage.generation": stage.ErrGeneration,
		"stage.arena":      stage.ErrArena,
		"formats.unknown":  formats.ErrUnknown,
	} {
		group.RegisterError(code, err)
	}
}

// The types of messages. docs/saver.md specifies them.
const (
	// From the trainer to the saver.
	typeHello    = "hello"
	typeListen   = "listen"
	typeJoin     = "join"
	typeSave     = "save"
	typeStaged   = "staged"
	typeAbandon  = "abandon"
	typeFetched  = "fetched"
	typeDrop     = "drop"
	typeLoad     = "load"
	typeDescribe = "describe"
	typeNewest   = "newest"
	typeMemory   = "memory"
	typeCancel   = "cancel"
	// From the saver to the trainer.
	typeReady     = "ready"
	typeListening = "listening"
	typeJoined    = "joined"
	typeFetch     = "fetch"
	typeReleased  = "released"
	typeProgress  = "progress"
	typeWarning   = "warning"
	typeSaved     = "saved"
	typeUploaded  = "uploaded"
	typeCopied    = "copied"
	typeHosted    = "hosted"
	typePiece     = "piece"
	typeLoaded    = "loaded"
	typeDescribed = "described"
	typeFound     = "found"
	typeFailed    = "failed"
	typeRefused   = "refused"
)

// frame is one message: its type, and a body that depends on it.
type frame struct {
	Type string          `json:"type"`
	Body json.RawMessage `json:"body,omitempty"`
}

// helloBody begins the conversation; readyBody answers.
type helloBody struct {
	Version int `json:"version"`
}

type readyBody struct {
	Version int `json:"version"`
	PID     int `json:"pid"`
}

// listenBody asks the saver of rank 0 for the address at which the other savers find it.
type listenBody struct {
	// Address is where to listen, "host:port" with port 0 for any. Empty: loopback.
	Address string `json:"address"`
	Size    int    `json:"size"`
	Secret  []byte `json:"secret"`
	Job     string `json:"job"`
}

type listeningBody struct {
	Address string `json:"address"`
}

// joinedBody says that all savers have met.
type joinedBody struct{}

// joinBody lets the saver join the group of savers.
type joinBody struct {
	Rank    int    `json:"rank"`
	Size    int    `json:"size"`
	Address string `json:"address"`
	Secret  []byte `json:"secret"`
	Job     string `json:"job"`
}

// saveBody describes a state that is about to be staged.
type saveBody struct {
	Generation uint64 `json:"generation"`
	SaveRequest
	// Fits means that everything will be staged without a fetch.
	Fits   bool       `json:"fits,omitempty"`
	Items  []itemBody `json:"items"`
	Absent []string   `json:"absent,omitempty"`
}

// itemBody is one tensor, one box of a tensor, or one value.
type itemBody struct {
	Name string `json:"name"`
	Path []step `json:"path,omitempty"`

	// DType, Shape, Offsets and Sizes describe a tensor. A whole tensor has no
	// Offsets and no Sizes.
	DType   string  `json:"dtype,omitempty"`
	Shape   []int64 `json:"shape,omitempty"`
	Offsets []int64 `json:"offsets,omitempty"`
	Sizes   []int64 `json:"sizes,omitempty"`
	Sharded bool    `json:"sharded,omitempty"`
	// Strides is set if the elements are not contiguous in the arena.
	Strides      []int64 `json:"strides,omitempty"`
	Alias        int     `json:"alias,omitempty"`
	MayDiffer    bool    `json:"may_differ,omitempty"`
	RequiresGrad bool    `json:"requires_grad,omitempty"`
	PinMemory    bool    `json:"pin_memory,omitempty"`
	MemoryFormat string  `json:"memory_format,omitempty"`
	Layout       string  `json:"layout,omitempty"`

	// Codec and Data are a value.
	Codec string `json:"codec,omitempty"`
	Data  []byte `json:"data,omitempty"`
}

// step is one step of a path in JSON: a string is a key, {"pos": 3} a position in a
// list, {"int": "3"} an integer key.
type step meta.Step

func (s step) MarshalJSON() ([]byte, error) {
	switch {
	case s.List:
		return json.Marshal(map[string]int{"pos": s.Pos})
	case s.Int:
		return json.Marshal(map[string]string{"int": s.Key})
	}
	return json.Marshal(s.Key)
}

func (s *step) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		var key string
		err := json.Unmarshal(b, &key)
		*s = step(meta.Key(key))
		return err
	}
	var other struct {
		Pos *int    `json:"pos"`
		Int *string `json:"int"`
	}
	if err := json.Unmarshal(b, &other); err != nil {
		return err
	}
	switch {
	case other.Pos != nil && other.Int == nil:
		*s = step(meta.Pos(*other.Pos))
	case other.Int != nil && other.Pos == nil:
		*s = step{Key: *other.Int, Int: true}
	default:
		return fmt.Errorf("%w: the step %s of a path", ErrMessage, b)
	}
	return meta.Step(*s).Check()
}

// stagedBody says where items were staged.
type stagedBody struct {
	Generation uint64     `json:"generation"`
	Units      []unitBody `json:"units,omitempty"`
	// All says that all units are staged. A save without it is never
	// published if the trainer ends.
	All bool `json:"all"`
	// StageNS is how long staging took, and StageBytes the number of staged bytes.
	// They come with All and are for the record of the save only. Zero: unknown.
	StageNS    int64 `json:"stage_ns,omitempty"`
	StageBytes int64 `json:"stage_bytes,omitempty"`
}

// phase returns the phase of staging, which ends at a time.
func (b *stagedBody) phase(end time.Duration) (meta.Phase, error) {
	if b.StageNS < 0 || b.StageNS > int64(meta.MaxPhaseTime) || b.StageBytes < 0 {
		return meta.Phase{}, fmt.Errorf("%w: %d bytes were staged in %d ns", ErrMessage, b.StageBytes, b.StageNS)
	}
	return meta.Phase{Name: meta.PhaseStage, Start: end - time.Duration(b.StageNS), End: end, Bytes: b.StageBytes}, nil
}

// unitBody is a set of items that were staged together. The eight bytes at Stamp hold the
// generation.
type unitBody struct {
	Stamp int64   `json:"stamp"`
	Items []int   `json:"items"`
	At    []int64 `json:"at"`
}

// abandonBody says that the trainer cannot stage the rest of a state. The save fails.
type abandonBody struct {
	Generation uint64    `json:"generation"`
	Error      errorBody `json:"error"`
}

// fetchBody asks for a part of an item that is not staged, to be copied to At.
type fetchBody struct {
	Fetch      uint64 `json:"fetch"`
	Generation uint64 `json:"generation"`
	Item       int    `json:"item"`
	Offset     int64  `json:"offset"`
	Length     int64  `json:"length"`
	At         int64  `json:"at"`
}

type fetchedBody struct {
	Fetch uint64     `json:"fetch"`
	Error *errorBody `json:"error,omitempty"`
}

// releasedBody says that the saver does not need items any more.
type releasedBody struct {
	Generation uint64 `json:"generation"`
	Items      []int  `json:"items"`
}

// dropBody withdraws a save that has not begun.
type dropBody struct {
	Generation uint64 `json:"generation"`
}

// subject is the save or the load that a message is about. One of them is zero.
type subject struct {
	Generation uint64 `json:"generation,omitempty"`
	Load       uint64 `json:"load,omitempty"`
}

// progressBody is the progress of a save or a load since the last such message.
type progressBody struct {
	subject
	Planned int64 `json:"planned,omitempty"`
	Moved   int64 `json:"moved,omitempty"`
	// Phases have ended since the last such message. The phase of staging, which the
	// trainer notes itself, is not among them.
	Phases []meta.Phase `json:"phases,omitempty"`
}

type warningBody struct {
	subject
	Text string `json:"text"`
}

type savedBody struct {
	Generation uint64               `json:"generation"`
	Report     *protocol.SaveReport `json:"report"`
}

// uploadedBody is the outcome of an upload. It has a report or an error.
type uploadedBody struct {
	Generation uint64         `json:"generation"`
	Report     *upload.Report `json:"report,omitempty"`
	Error      *errorBody     `json:"error,omitempty"`
}

// copiedBody is the outcome of the copies of a save to memory. It has a report or an error.
type copiedBody struct {
	Generation uint64         `json:"generation"`
	Report     *memory.Report `json:"report,omitempty"`
	Error      *errorBody     `json:"error,omitempty"`
}

// memoryBody asks for a run in memory; hostedBody answers.
type memoryBody struct {
	Load uint64 `json:"load"`
	Run  string `json:"run"`
	// Leave means that the trainer needs the run no more: the saver does not serve it. Forget
	// also removes the files of this host.
	Leave  bool `json:"leave,omitempty"`
	Forget bool `json:"forget,omitempty"`
}

type hostedBody struct {
	Load  uint64     `json:"load"`
	Host  string     `json:"host"`
	Hosts []hostBody `json:"hosts"`
}

// hostBody is a host of a run in memory. Partners are the ids of the hosts that keep copies of its files.
type hostBody struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	Domain  string `json:"domain,omitempty"`
	Address string `json:"address"`
	// Interface is the name of the network interface of the address, if it is known.
	Interface string   `json:"interface,omitempty"`
	Ranks     []int    `json:"ranks"`
	Partners  []string `json:"partners"`
}

// source is a checkpoint to read.
type source struct {
	Store         string          `json:"store"`
	Format        string          `json:"format,omitempty"` // empty: it is detected
	FormatOptions json.RawMessage `json:"format_options,omitempty"`
	// Base is the address of version 0, if the checkpoint is a version of slime, or of the model,
	// if it is an adapter. They are of several formats, so the format is detected.
	Base   string  `json:"base,omitempty"`
	Recipe *Recipe `json:"recipe,omitempty"` // nil: the checkpoint as it is
	// Keep bounds the bytes of the files that the saver keeps in memory for the next
	// version of the checkpoint. Zero: none are kept.
	Keep int64 `json:"keep,omitempty"`
}

// Recipe names a recipe, which shows a checkpoint in another form.
type Recipe struct {
	// Name is the name of a recipe, or the path of a file.
	Name string `json:"name"`
	// Reverse uses the recipe backwards.
	Reverse bool `json:"reverse,omitempty"`
	// Config is the path of the model's config.json, as a string, or its contents, as a
	// map. Nil: config.json of the checkpoint, if it has one.
	Config any `json:"config,omitempty"`
	// Set are values of variables of the recipe.
	Set map[string]any `json:"set,omitempty"`
	// Check reads the contents and checks the assumptions of the recipe: that padding is
	// zero, and that copies of a tensor are equal. One rank of a job is enough.
	Check bool `json:"check,omitempty"`
}

// loadBody asks for parts of a checkpoint.
type loadBody struct {
	Load uint64 `json:"load"`
	source
	AllowMissing bool              `json:"allow_missing,omitempty"`
	Cast         tensor.CastPolicy `json:"cast,omitempty"`
	// Share means that the savers of all ranks load together. If several savers of a host
	// want the same bytes, one of them reads the bytes for all.
	Share bool       `json:"share,omitempty"`
	Items []wantBody `json:"items"`
}

// wantBody is a box of a tensor and the place in the arena for it, or a value.
type wantBody struct {
	Name    string  `json:"name"`
	DType   string  `json:"dtype,omitempty"` // empty: a value
	Shape   []int64 `json:"shape,omitempty"`
	Offsets []int64 `json:"offsets,omitempty"`
	Sizes   []int64 `json:"sizes,omitempty"`
	At      int64   `json:"at,omitempty"`
}

// pieceBody says that an item has arrived and is verified. A value comes with it.
type pieceBody struct {
	Load  uint64 `json:"load"`
	Item  int    `json:"item"`
	Codec string `json:"codec,omitempty"`
	Data  []byte `json:"data,omitempty"`
}

type loadedBody struct {
	Load   uint64               `json:"load"`
	Report *protocol.LoadReport `json:"report"`
}

// describeBody asks for the contents of a checkpoint. It has a number like a load.
type describeBody struct {
	Load uint64 `json:"load"`
	source
	// Hold keeps the checkpoint open, for loads that follow, until it is cancelled.
	Hold bool `json:"hold,omitempty"`
}

// newestBody asks for a version of a run. It has a number like a load.
type newestBody struct {
	Load          uint64          `json:"load"`
	Store         string          `json:"store"`
	Format        string          `json:"format,omitempty"` // empty: it is detected
	FormatOptions json.RawMessage `json:"format_options,omitempty"`
	Base          string          `json:"base,omitempty"` // as in source
	// Known is the trainer's knowledge of the versions.
	Known versions.Known `json:"known,omitzero"`
	// Search is a preparation, and Outcome the error of its last attempt. Nil: the trainer waits
	// for a version.
	Search  *versions.Search `json:"search,omitempty"`
	Outcome *errorBody       `json:"outcome,omitempty"`
}

// foundBody is a version of a run, and the findings of a search.
type foundBody struct {
	Load uint64 `json:"load"`
	// Version is nil if the run has no such version.
	Version *versionBody `json:"version,omitempty"`
	// Problems are damaged versions that were passed over or, in a search, everything that went
	// wrong so far.
	Problems []string         `json:"problems,omitempty"`
	Known    *versions.Known  `json:"known,omitempty"`
	Search   *versions.Search `json:"search,omitempty"`
	// Over is the reason why the search is over without a version: overFailed, or the
	// reason of a versions.Over. Why is the error of that.
	Over string     `json:"over,omitempty"`
	Why  *errorBody `json:"why,omitempty"`
}

// overFailed means that no other attempt helps against the outcome of the last one.
const overFailed = "failed"

// versionBody is a version of a run, and the address of its folder.
type versionBody struct {
	versions.Version
	Store string `json:"store"`
}

// describedBody has the contents of a checkpoint.
type describedBody struct {
	Load uint64 `json:"load"`
	// Format is the name and version of the format.
	Format    string            `json:"format"`
	SaveID    string            `json:"save_id,omitempty"`
	Step      *int64            `json:"step,omitempty"`
	Time      *time.Time        `json:"time,omitempty"`
	Writer    string            `json:"writer,omitempty"`
	WorldSize int               `json:"world_size,omitempty"`
	Tags      map[string]string `json:"tags,omitempty"`
	Notes     []string          `json:"notes,omitempty"`
	Missing   []string          `json:"missing,omitempty"`
	Entries   []entryBody       `json:"entries"`
}

// entryBody is a tensor or a value of a checkpoint. A tensor is whole. A value has its data if
// it is small.
type entryBody struct {
	itemBody
	// Bytes is the size of a value.
	Bytes int64 `json:"bytes,omitempty"`
	// Order is the position of a tensor in the order of the files.
	Order int `json:"order,omitempty"`
	// Scales is the name of the scales of a quantised tensor.
	Scales string `json:"scales,omitempty"`
}

type cancelBody struct {
	Load uint64 `json:"load"`
}

// failedBody ends a save or a load that failed, or answers listen or join if it is about
// neither.
type failedBody struct {
	subject
	Error errorBody `json:"error"`
	Phase string    `json:"phase,omitempty"` // of a save: the one that failed on this rank
}

// refusedBody is why the saver ends the conversation.
type refusedBody struct {
	Error errorBody `json:"error"`
}

// errorBody is an error in a message: its text, and the names of the errors that it
// wraps, such as "storage.exists".
type errorBody struct {
	Text  string   `json:"text"`
	Codes []string `json:"codes,omitempty"`
}

func newErrorBody(err error) errorBody {
	e := group.NewRemoteError(err)
	return errorBody{e.Text, e.Codes}
}

// saverError returns an error of the group of savers as the trainer receives it. A rank
// that this group has lost is a saver, and the error wraps ErrSaver. If the trainer of a
// rank has ended before its state was staged, the error wraps group.ErrGone, as the errors
// of the trainers' own group do.
func saverError(err error) errorBody {
	v := newErrorBody(err)
	codes := v.Codes
	v.Codes = nil
	for _, c := range codes {
		switch c {
		case codeGone, codeLeft:
			c = codeSaver
		case codeTrainer:
			c = codeGone
		}
		if !slices.Contains(v.Codes, c) {
			v.Codes = append(v.Codes, c)
		}
	}
	if slices.Contains(v.Codes, codeSaver) {
		v.Text = ErrSaver.Error() + ": " + v.Text
	}
	return v
}

func (e *errorBody) err() error { return &group.RemoteError{Text: e.Text, Codes: e.Codes} }

// appendFrame appends a message to b: the number of its bytes and its JSON text.
func appendFrame(b []byte, kind string, body any) ([]byte, error) {
	text, err := json.Marshal(body)
	if err == nil {
		text, err = json.Marshal(frame{kind, text})
	}
	if err != nil {
		return nil, err
	}
	if len(text) > maxFrame {
		return nil, fmt.Errorf("%w: %s of %d bytes; at most %d are possible", ErrMessage, kind, len(text), maxFrame)
	}
	b = binary.LittleEndian.AppendUint32(b, uint32(len(text)))
	return append(b, text...), nil
}

// readFrame reads a message. It returns io.EOF at the end of the stream.
func readFrame(r io.Reader) (*frame, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int64(binary.LittleEndian.Uint32(head[:]))
	if n > maxFrame {
		return nil, fmt.Errorf("%w: %d bytes", ErrMessage, n)
	}
	// A first byte that begins no message is refused at once, however long the
	// frame claims to be.
	text := make([]byte, min(n, 1))
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, cutOff(err)
	}
	if n == 0 || text[0] != '{' {
		return nil, fmt.Errorf("%w: a frame of %d bytes does not begin with {", ErrMessage, n)
	}
	for int64(len(text)) < n {
		at := len(text)
		text = append(text, make([]byte, min(n-int64(at), max(frameStep, int64(at))))...)
		if _, err := io.ReadFull(r, text[at:]); err != nil {
			return nil, cutOff(err)
		}
	}
	f := new(frame)
	if err := json.Unmarshal(text, f); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return f, nil
}

// cutOff returns the error of a stream that ends in the middle of a message.
func cutOff(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// decode decodes the body of a message. A field that is not known is an error if strict
// is set: a misspelt option would be ignored otherwise.
func decode[T any](f *frame, strict bool) (*T, error) {
	if len(f.Body) == 0 || f.Body[0] != '{' {
		return nil, fmt.Errorf("%w: the body of %q is not an object", ErrMessage, f.Type)
	}
	v := new(T)
	d := json.NewDecoder(bytes.NewReader(f.Body))
	if strict {
		d.DisallowUnknownFields()
	}
	if err := d.Decode(v); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrMessage, f.Type, err)
	}
	return v, nil
}

// describe returns the message of an item of a plan.
func describe(it *plan.WriteItem) itemBody {
	in := it.Info
	out := itemBody{Name: in.FQN}
	for _, s := range in.Path {
		out.Path = append(out.Path, step(s))
	}
	if it.Kind == plan.KindBytes {
		out.Codec = in.Codec
		return out
	}
	out.DType, out.Shape = in.DType.String(), in.Shape
	out.RequiresGrad, out.PinMemory, out.MemoryFormat, out.Layout = in.RequiresGrad, in.PinMemory, in.MemoryFormat, in.Layout
	out.MayDiffer = it.MayDiffer
	if out.Sharded = it.Kind == plan.KindShard; out.Sharded {
		out.Offsets, out.Sizes = it.Box.Offsets, it.Box.Sizes
	}
	return out
}

// writeItem returns the item of a plan that a message describes. known are the
// descriptions of the items before it, by name.
func (m *itemBody) writeItem(known map[string]*plan.Info, compare bool) (plan.WriteItem, error) {
	it := plan.WriteItem{Kind: plan.KindBytes, Size: int64(len(m.Data))}
	info := &plan.Info{FQN: m.Name, Codec: m.Codec}
	err := meta.CheckFQN(m.Name)
	if err == nil && m.Codec == "" {
		err = m.tensor(&it, info)
	} else if err == nil {
		err = m.value()
		if compare {
			it.Hash = plan.HashValue(m.Data)
		}
	}
	if err != nil {
		return it, fmt.Errorf("%w: %q: %w", ErrMessage, m.Name, err)
	}
	for _, s := range m.Path {
		info.Path = append(info.Path, meta.Step(s))
	}
	if k := known[m.Name]; k != nil && k.Equal(info) {
		info = k
	}
	known[m.Name], it.Info = info, info
	if err := it.Check(); err != nil {
		return it, fmt.Errorf("%w: %w", ErrMessage, err)
	}
	return it, nil
}

// tensor adds the tensor of the message to it.
func (m *itemBody) tensor(it *plan.WriteItem, info *plan.Info) error {
	d, err := tensor.ParseDType(m.DType)
	if err != nil {
		return err
	}
	if m.Data != nil || !m.Sharded && (m.Offsets != nil || m.Sizes != nil) {
		return errors.New("a tensor has no data, and only a sharded one has offsets and sizes")
	}
	info.Properties = meta.Properties{DType: d, RequiresGrad: m.RequiresGrad, PinMemory: m.PinMemory, MemoryFormat: m.MemoryFormat, Layout: m.Layout}
	info.Shape, it.Size = m.Shape, 0
	it.Kind, it.Box = plan.KindTensor, tensor.Whole(m.Shape)
	if m.Sharded {
		it.Kind, it.Box = plan.KindShard, tensor.Box{Offsets: m.Offsets, Sizes: m.Sizes}
	}
	if m.Alias < 0 || m.Alias > math.MaxInt32 {
		return fmt.Errorf("the alias %d", m.Alias)
	}
	it.Alias, it.MayDiffer = int32(m.Alias), m.MayDiffer
	return nil
}

// value checks the message of a value.
func (m *itemBody) value() error {
	if m.DType != "" || m.Shape != nil || m.Strides != nil || m.Sharded || m.Alias != 0 || m.MayDiffer {
		return errors.New("a value has no fields of a tensor")
	}
	if m.Codec != value.Raw && m.Codec != value.JSON {
		return fmt.Errorf("the codec %q", m.Codec)
	}
	if m.Codec == value.Raw {
		return nil
	}
	_, err := value.Decode(m.Codec, m.Data)
	return err
}

// span returns how many bytes of the arena an item takes from its first element on.
func (m *itemBody) span(it *plan.WriteItem) (int64, error) {
	size := int64(it.Info.DType.Size())
	if m.Strides == nil {
		return it.NumBytes(), nil
	}
	if len(m.Strides) != len(it.Box.Sizes) {
		return 0, fmt.Errorf("%w: %q has %d strides and %d dimensions", ErrMessage, m.Name, len(m.Strides), len(it.Box.Sizes))
	}
	if it.Box.Empty() {
		return 0, nil
	}
	last := int64(0)
	for i, n := range it.Box.Sizes {
		s := m.Strides[i]
		if s < 0 || n > 1 && s > (math.MaxInt64/size-1-last)/(n-1) {
			return 0, fmt.Errorf("%w: %q has the stride %d", ErrMessage, m.Name, s)
		}
		last += (n - 1) * s
	}
	return (last + 1) * size, nil
}

// on decodes the body of a message and handles it. Unknown fields are an error if strict
// is set.
func on[T any](f *frame, strict bool, handle func(*T) error) error {
	b, err := decode[T](f, strict)
	if err != nil {
		return err
	}
	return handle(b)
}
