package saver

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/background/upload"
	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/plan"
	"github.com/cairn-ckpt/cairn/protocol"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/run/versions"
	"github.com/cairn-ckpt/cairn/storage"
	"github.com/cairn-ckpt/cairn/storage/formats"
	"github.com/cairn-ckpt/cairn/storage/torchdcp"
	"github.com/cairn-ckpt/cairn/tensor"
)

// messages are examples of all messages, by the names of their files in
// testdata/messages. A name is the type of the message, perhaps with a suffix.
var messages = map[string]any{
	"hello":     helloBody{Version: 1},
	"ready":     readyBody{Version: 1, PID: 4711},
	"listen":    listenBody{Address: "10.0.0.7:0", Size: 4, Secret: []byte("a long random secret"), Job: "run 12"},
	"listening": listeningBody{Address: "10.0.0.7:41234"},
	"join":      joinBody{Rank: 3, Size: 4, Address: "10.0.0.7:41234", Secret: []byte("a long random secret"), Job: "run 12"},
	"join-solo": joinBody{Size: 1},
	"joined":    joinedBody{},
	"save": saveBody{
		Generation: 7,
		SaveRequest: SaveRequest{
			Store: "/checkpoints/step-100", Format: "native", FormatOptions: json.RawMessage(`{"file_bytes":1073741824}`),
			SaveID: "0b1k2m3n4p5q6r7s8t9v", Time: "2026-11-15T22:00:00.123456789Z", Writer: "trainer 1.0", Step: new(int64(100)),
			Tags: map[string]string{"run": "12"}, FilesPerRank: 2, BufferBytes: 1 << 28, FailIfExists: true, SweepAfter: time.Hour,
			Owner: plan.LowestRank, ValuesMayDiffer: true, Cache: true,
		},
		Items: []itemBody{
			{Name: "model.w", Path: []step{step(meta.Key("model")), step(meta.Key("w"))}, DType: "float32", Shape: []int64{4, 8}, Offsets: []int64{2, 0}, Sizes: []int64{2, 8}, Sharded: true, RequiresGrad: true},
			{Name: "opt.0.m", Path: []step{step(meta.Key("opt")), step(meta.Pos(0)), step(meta.Key("m"))}, DType: "bfloat16", Shape: []int64{3, 5}, Strides: []int64{1, 3}, Alias: 1, PinMemory: true, MemoryFormat: "torch.preserve_format", Layout: "torch.strided"},
			{Name: "scale", DType: "float64"},
			{Name: "opt.1.step", Path: []step{step(meta.Key("opt")), {Key: "1", Int: true}, step(meta.Key("step"))}, Codec: "json", Data: []byte(`100`)},
			{Name: "rng", Codec: "raw", Data: []byte{0, 1, 2, 255}},
		},
		Absent: []string{"model.bias"},
	},
	"save-least": saveBody{Generation: 1, SaveRequest: SaveRequest{Store: "/checkpoints/a", Format: "native", SaveID: "a", Time: "2026-11-15T22:00:00Z"}, Items: []itemBody{}},
	"save-tiers": saveBody{Generation: 8, SaveRequest: SaveRequest{Store: "/ssd/run/step-200", Remote: "s3://bucket/run/step-200", LocalBytes: 1 << 40, Format: "native", SaveID: "b", Time: "2026-11-15T23:00:00Z"}, Items: []itemBody{}},
	"save-version": saveBody{Generation: 10, SaveRequest: SaveRequest{
		Store: "s3://bucket/weights/step-000000007", Format: "native", SaveID: "d", Time: "2026-11-18T00:00:00Z", Step: new(int64(7)), FailIfExists: true,
		Run: &InRun{Keep: "last 4", Refer: true, Remember: true},
	}, Items: []itemBody{}},
	"save-run": saveBody{Generation: 9, SaveRequest: SaveRequest{
		Store: "/ssd/run/step-000000300", Remote: "s3://bucket/run/step-000000300", Format: "native", SaveID: "c", Time: "2026-11-16T00:00:00Z", Step: new(int64(300)),
		Metrics: run.Metrics{"accuracy": 0.5, "loss": math.NaN()}, Run: &InRun{Remote: "s3://bucket/run", Keep: "last 3, best 2 by loss", KeepRemote: "every 5000 steps"},
	}, Items: []itemBody{}},
	"staged":       stagedBody{Generation: 7, Units: []unitBody{{Stamp: 0, Items: []int{0, 1}, At: []int64{64, 128}}, {Stamp: 4096, Items: []int{2}, At: []int64{4160}}}},
	"staged-all":   stagedBody{Generation: 7, All: true, StageNS: 120_000_000, StageBytes: 8192},
	"abandon":      abandonBody{7, errorBody{Text: "context canceled", Codes: []string{"context.Canceled"}}},
	"fetch":        fetchBody{Fetch: 1, Generation: 7, Item: 2, Offset: 1048576, Length: 524288, At: 939524096},
	"fetched":      fetchedBody{Fetch: 1},
	"fetched-fail": fetchedBody{Fetch: 1, Error: &errorBody{Text: "the staged memory holds another generation", Codes: []string{"stage.generation"}}},
	"released":     releasedBody{Generation: 7, Items: []int{0, 1}},
	"drop":         dropBody{Generation: 8},
	"progress":     progressBody{subject: subject{Generation: 7}, Planned: 144},
	"warning":      warningBody{subject{Generation: 7}, "remove an old file: permission denied"},
	"saved": savedBody{7, &protocol.SaveReport{
		SaveID: "0b1k2m3n4p5q6r7s8t9v", Step: new(int64(100)), Bytes: 512, RankBytes: 144, Files: 8, PlanReused: true,
		PlanTime: time.Millisecond, WriteTime: 2 * time.Second,
		Phases:  []meta.Phase{{Name: meta.PhaseStage, End: 120_000_000, Bytes: 8192}, {Name: meta.PhaseWrite, Start: 200_000_000, End: 2_200_000_000, Bytes: 144}},
		Traffic: &blob.Traffic{Requests: 6, Retries: 1, Sent: 1144},
	}},
	"uploaded": uploadedBody{Generation: 8, Report: &upload.Report{
		SaveID: "b", Bytes: 512, RankBytes: 400, Files: 8, Time: 3 * time.Second, Traffic: &blob.Traffic{Requests: 7, Retries: 1, Sent: 1400},
	}},
	"uploaded-fail": uploadedBody{Generation: 8, Error: &errorBody{Text: "put s3://bucket/run/step-200: access denied", Codes: []string{"fs.ErrPermission"}}},
	"load": loadBody{
		Load: 3, source: source{Store: "/checkpoints/step-100", Format: "hf", FormatOptions: json.RawMessage(`{"dequantize":true,"dtype":"bfloat16"}`)}, AllowMissing: true, Cast: tensor.CastAny,
		Items: []wantBody{
			{Name: "model.w", DType: "float32", Shape: []int64{4, 8}, Offsets: []int64{0, 4}, Sizes: []int64{4, 4}, At: 4096},
			{Name: "scale", DType: "float64", At: 4160},
			{Name: "step"},
		},
	},
	"piece":         pieceBody{Load: 3, Item: 0},
	"piece-value":   pieceBody{Load: 3, Item: 2, Codec: "json", Data: []byte(`100`)},
	"describe":      describeBody{Load: 4, source: source{Store: "/checkpoints/step-100"}},
	"describe-hold": describeBody{Load: 6, source: source{Store: "/checkpoints/step-100"}, Hold: true},
	"describe-recipe": describeBody{Load: 5, source: source{Store: "/models/llama", Recipe: &Recipe{
		Name: "hf-to-titan/llama", Config: map[string]any{"num_attention_heads": 32}, Set: map[string]any{"tied": false}, Check: true,
	}}},
	"load-keep":  loadBody{Load: 6, source: source{Store: "/run/weights/step-000000017", Keep: 1 << 33}, Items: []wantBody{{Name: "w", DType: "bfloat16", Shape: []int64{4}, At: 4096}}},
	"load-share": loadBody{Load: 9, source: source{Store: "s3://bucket/models/llama"}, Share: true, Items: []wantBody{{Name: "w", DType: "bfloat16", Shape: []int64{4}, At: 4096}}},
	"newest": newestBody{Load: 7, Store: "/run/weights", Known: versions.Known{
		Last: &versions.Version{Step: 17, SaveID: "c"}, Damaged: map[int64]string{18: "d"}, Unfit: &versions.Version{Step: 19, SaveID: "e"},
	}},
	"newest-in":     newestBody{Load: 8, Store: "/run/published", Base: "/models/llama"},
	"newest-search": newestBody{Load: 9, Store: "/run/weights", Search: &versions.Search{Step: new(int64(20))}},
	"newest-outcome": newestBody{
		Load: 10, Store: "/run/weights", Search: &versions.Search{Now: &version20, Looks: 1},
		Outcome: &errorBody{Text: "chunk 0: checksum mismatch", Codes: []string{"storage.corrupt"}},
	},
	"found": foundBody{
		Load: 7, Version: &versionBody{version20.Version, "/run/weights/step-000000020"},
		Problems: []string{"version 21: read /run/weights/step-000000021: checkpoint is corrupt: 0b1k-r00000-0.delta is missing"},
	},
	"found-none": foundBody{Load: 8},
	"found-search": foundBody{
		Load: 10, Version: &versionBody{version20.Version, "/run/weights/step-000000020"}, Problems: []string{damaged20.Text},
		Known: new(versions.Known), Search: &versions.Search{Now: &version20, Again: true, Tried: []group.RemoteError{*damaged20}, Err: damaged20, Looks: 1},
	},
	"found-over": foundBody{
		Load: 11, Problems: []string{damaged20.Text}, Known: &versions.Known{Damaged: map[int64]string{20: "f"}}, Search: new(versions.Search),
		Over: versions.Damaged, Why: &errorBody{damaged20.Text, damaged20.Codes},
	},
	"described": describedBody{
		Load: 4, Format: "cairn 1", SaveID: "0b1k2m3n4p5q6r7s8t9v", Step: new(int64(100)), Time: new(time.Date(2026, 11, 15, 22, 0, 0, 0, time.UTC)),
		Writer: "trainer 1.0", WorldSize: 4, Tags: map[string]string{"run": "12"}, Notes: []string{"the format has no checksums"}, Missing: []string{"model.b"},
		Entries: []entryBody{
			{itemBody: itemBody{Name: "model.w", Path: []step{step(meta.Key("model")), step(meta.Key("w"))}, DType: "float32", Shape: []int64{4, 8}, RequiresGrad: true}},
			{itemBody: itemBody{Name: "rng", Codec: "raw"}, Bytes: 5056},
			{itemBody: itemBody{Name: "step", Codec: "json", Data: []byte(`100`)}, Bytes: 3},
		},
	},
	"loaded": loadedBody{3, &protocol.LoadReport{
		SaveID: "0b1k2m3n4p5q6r7s8t9v", Step: new(int64(100)), Local: storage.ReadStats{Needed: 72, Rounded: 128, Read: 136, Requests: 1}, Total: storage.ReadStats{Needed: 72, Rounded: 128, Read: 136, Requests: 1},
		Missing: []string{"scale"}, PlanTime: time.Millisecond, ReadTime: time.Second,
		Traffic: &blob.Traffic{Requests: 4, Received: 936},
	}},
	"cancel": cancelBody{Load: 3},
	"memory": memoryBody{Load: 12, Run: "llama"},
	"hosted": hostedBody{
		Load: 12, Host: "5f1c", Hosts: []hostBody{
			{ID: "5f1c", Name: "node-1", Domain: "rack 1", Address: "10.0.0.7:41300", Interface: "ib0", Ranks: []int{0, 1}, Partners: []string{"91ab"}},
			{ID: "91ab", Name: "node-2", Domain: "rack 2", Address: "10.0.0.8:41300", Ranks: []int{2, 3}, Partners: []string{"5f1c"}},
		},
	},
	"copied":      copiedBody{Generation: 11, Report: &memory.Report{SaveID: "e", Bytes: 1024, RankBytes: 512, Files: 2, Time: time.Second, RankHeld: 256}},
	"copied-fail": copiedBody{Generation: 11, Error: &errorBody{"fetch step-000000010/e-r00001-0.safetensors: the copy is damaged", []string{"storage.corrupt"}}},
	"save-memory": saveBody{
		Generation:  11,
		SaveRequest: SaveRequest{Store: "memory://llama/step-000000010", Copies: 2, CopyRate: 500_000_000, Format: "native", SaveID: "e", Time: "2026-11-19T00:00:00Z", Step: new(int64(10)), Run: &InRun{Keep: "last 1"}},
		Items:       []itemBody{},
	},
	"progress-phases": progressBody{subject: subject{Generation: 7}, Moved: 144, Phases: []meta.Phase{
		{Name: meta.PhaseWrite, Start: 200_000_000, End: 2_200_000_000, Bytes: 144},
	}},
	"progress-load": progressBody{subject: subject{Load: 3}, Moved: 72},
	"failed":        failedBody{subject{Generation: 7}, errorBody{Text: "a checkpoint exists", Codes: []string{"storage.exists"}}, meta.PhasePlan},
	"failed-load":   failedBody{subject: subject{Load: 3}, Error: errorBody{Text: "chunk 0: checksum mismatch", Codes: []string{"storage.corrupt"}}},
	"failed-join":   failedBody{Error: errorBody{Text: "rank 2 has not come", Codes: []string{"context.DeadlineExceeded"}}},
	"refused":       refusedBody{errorBody{Text: "malformed message: the first message is \"hello\"", Codes: []string{"saver.message"}}},
}

var (
	version20 = versions.Choice{Version: versions.Version{Step: 20, SaveID: "f"}, Path: []byte("/run/weights/step-000000020")}
	damaged20 = &group.RemoteError{Text: "version 20: chunk 0: checksum mismatch", Codes: []string{"storage.corrupt"}}
)

// kind returns the type of the message of an example.
func kind(example string) string {
	k, _, _ := strings.Cut(example, "-")
	return k
}

// bodies decodes the body of a message of each type as its receiver does.
var bodies = map[string]func(f *frame) (any, error){
	typeHello:     as[helloBody](false),
	typeListen:    as[listenBody](true),
	typeJoin:      as[joinBody](true),
	typeSave:      as[saveBody](true),
	typeStaged:    as[stagedBody](true),
	typeAbandon:   as[abandonBody](true),
	typeFetched:   as[fetchedBody](true),
	typeDrop:      as[dropBody](true),
	typeLoad:      as[loadBody](true),
	typeCancel:    as[cancelBody](true),
	typeReady:     as[readyBody](false),
	typeListening: as[listeningBody](false),
	typeJoined:    as[joinedBody](false),
	typeFetch:     as[fetchBody](false),
	typeReleased:  as[releasedBody](false),
	typeProgress:  as[progressBody](false),
	typeWarning:   as[warningBody](false),
	typeSaved:     as[savedBody](false),
	typeUploaded:  as[uploadedBody](false),
	typePiece:     as[pieceBody](false),
	typeDescribe:  as[describeBody](true),
	typeNewest:    as[newestBody](true),
	typeMemory:    as[memoryBody](true),
	typeHosted:    as[hostedBody](false),
	typeCopied:    as[copiedBody](false),
	typeFound:     as[foundBody](false),
	typeDescribed: as[describedBody](false),
	typeLoaded:    as[loadedBody](false),
	typeFailed:    as[failedBody](false),
	typeRefused:   as[refusedBody](false),
}

func as[T any](strict bool) func(f *frame) (any, error) {
	return func(f *frame) (any, error) {
		v, err := decode[T](f, strict)
		if err != nil {
			return nil, err
		}
		return *v, nil
	}
}

// decodeBody decodes the body of a message. It returns nil if no message has this type.
func decodeBody(f *frame) (any, error) {
	if decode := bodies[f.Type]; decode != nil {
		return decode(f)
	}
	return nil, nil
}

// types are the types of all messages.
var types = []string{
	typeHello, typeListen, typeJoin, typeSave, typeStaged, typeAbandon, typeFetched, typeDrop, typeLoad, typeDescribe, typeNewest, typeMemory, typeCancel,
	typeReady, typeListening, typeJoined, typeFetch, typeReleased, typeProgress, typeWarning, typeSaved, typeUploaded, typeCopied, typeHosted, typePiece, typeLoaded, typeDescribed, typeFound, typeFailed, typeRefused,
}

// golden compares the text with a golden file, or writes it.
func golden(t *testing.T, file string, text []byte) {
	t.Helper()
	if *update {
		must.Do(t, os.WriteFile(file, text, 0o666))
		return
	}
	want := must.Get(os.ReadFile(file))(t)
	if d := cmp.Diff(string(want), string(text)); d != "" {
		t.Errorf("%s: -want +got (go test -update rewrites it)\n%s", file, d)
	}
}

func TestMessagesAreGolden(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(messages)) {
		t.Run(name, func(t *testing.T) {
			b := must.Get(appendFrame(nil, kind(name), messages[name]))(t)
			if n := binary.LittleEndian.Uint32(b); int(n) != len(b)-4 {
				t.Errorf("the frame says %d bytes, and has %d", n, len(b)-4)
			}
			golden(t, filepath.Join("testdata", "messages", name+".json"), pretty(t, b[4:]))

			f := must.Get(readFrame(bytes.NewReader(b)))(t)
			got := must.Get(decodeBody(f))(t)
			again := must.Get(appendFrame(nil, f.Type, got))(t)
			if d := cmp.Diff(string(b), string(again)); d != "" {
				t.Errorf("decoded and encoded again: -want +got\n%s", d)
			}
		})
	}
}

func TestEveryMessageHasAGolden(t *testing.T) {
	for _, typ := range types {
		if messages[typ] == nil {
			t.Errorf("no example of %q", typ)
		}
	}
	files := must.Get(filepath.Glob("testdata/messages/*.json"))(t)
	for _, file := range files {
		if messages[strings.TrimSuffix(filepath.Base(file), ".json")] == nil {
			t.Errorf("%s is not an example of a message any more", file)
		}
	}
	code := must.Get(os.ReadFile("message.go"))(t)
	if n := len(regexp.MustCompile(`(?m)^\ttype[A-Z]\w+ += "`).FindAll(code, -1)); n != len(types) {
		t.Errorf("message.go has %d types of messages, this test knows %d", n, len(types))
	}
}

// The page docs/saver.md quotes the golden files: every type is there.
func TestSpecificationQuotesTheGoldens(t *testing.T) {
	const page = "../../docs/saver.md"
	text := must.Get(os.ReadFile(page))(t)
	quoted := map[string]bool{}
	example := regexp.MustCompile("(?s)<!-- from background/saver/testdata/messages/([\\w-]+)\\.json -->\n```json\n(.*?)```\n")
	now := example.ReplaceAllStringFunc(string(text), func(m string) string {
		name := example.FindStringSubmatch(m)[1]
		quoted[kind(name)] = true
		b, err := os.ReadFile("testdata/messages/" + name + ".json")
		if err != nil {
			t.Error(err)
			return m
		}
		return fmt.Sprintf("<!-- from background/saver/testdata/messages/%s.json -->\n```json\n%s```\n", name, b)
	})
	for _, typ := range types {
		if !quoted[typ] {
			t.Errorf("%s has no example of %q", page, typ)
		}
	}
	if *update {
		must.Do(t, os.WriteFile(page, []byte(now), 0o666))
		return
	}
	if d := cmp.Diff(string(text), now); d != "" {
		t.Errorf("%s: -page +goldens (go test -update rewrites it)\n%s", page, d)
	}
}

// pretty returns JSON in lines of up to 118 bytes.
func pretty(t *testing.T, text []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	must.Do(t, json.Indent(&b, text, "", "  "))
	innermost := regexp.MustCompile(`(?m)^( *)(\S.*)?([\[{])\n\s+([^\[\]{}]*?)\n\s*([\]}])`)
	hidden := strings.NewReplacer("[", "\x01", "]", "\x02", "{", "\x03", "}", "\x04")
	out := b.String()
	for short := true; short; {
		short = false
		out = innermost.ReplaceAllStringFunc(out, func(m string) string {
			p := innermost.FindStringSubmatch(m)
			line := p[1] + p[2] + p[3] + regexp.MustCompile(`\n\s*`).ReplaceAllString(p[4], " ") + p[5]
			if len(line) > 118 {
				return m
			}
			short = true
			return p[1] + p[2] + hidden.Replace(strings.TrimPrefix(line, p[1]+p[2]))
		})
	}
	return []byte(strings.NewReplacer("\x01", "[", "\x02", "]", "\x03", "{", "\x04", "}").Replace(out) + "\n")
}

// Every error that the page names is known under that code.
func TestSpecificationListsErrorCodes(t *testing.T) {
	page := must.Get(os.ReadFile("../../docs/saver.md"))(t)
	_, section, _ := strings.Cut(string(page), "\n## Errors\n")
	section, _, _ = strings.Cut(section, "\n## ")
	known := map[string]error{}
	for _, err := range []error{
		ErrMessage, ErrSaver, ErrReplaced, stage.ErrGeneration, stage.ErrArena, storage.ErrExists, storage.ErrNotFound,
		storage.ErrIncomplete, storage.ErrUnderWay,
		storage.ErrCorrupt, storage.ErrVersion, storage.ErrChanged, storage.ErrUncertain, storage.ErrOptions, storage.ErrNotRepresentable,
		formats.ErrUnknown, plan.ErrState, plan.ErrMismatch, plan.ErrMissing, tensor.ErrCast, group.ErrGone, context.Canceled,
		context.DeadlineExceeded, fs.ErrNotExist, fs.ErrPermission, syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS,
		blob.ErrService,
	} {
		for _, code := range newErrorBody(err).Codes {
			known[code] = err
		}
	}
	named := regexp.MustCompile("`(\\w+\\.\\w+)`").FindAllStringSubmatch(section, -1)
	if len(named) < len(known) {
		t.Errorf("the page names %d codes, there are %d", len(named), len(known))
	}
	for _, m := range named {
		if known[m[1]] == nil {
			t.Errorf("no error has the code %s", m[1])
		}
	}
}

// Every field of a request to save has a row on the page.
func TestSpecificationListsSaveFields(t *testing.T) {
	page := string(must.Get(os.ReadFile("../../docs/saver.md"))(t))
	_, section, _ := strings.Cut(page, "\n## save\n")
	section, _, _ = strings.Cut(section, "\n## staged\n")
	for _, request := range []any{SaveRequest{}, InRun{}} {
		for _, field := range reflect.VisibleFields(reflect.TypeOf(request)) {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name == "" || !strings.Contains(section, "`"+name+"`") && !strings.Contains(section, `"`+name+`"`) {
				t.Errorf("the section of save lacks the field %q of %T", name, request)
			}
		}
	}
}

// Every option of every format has a row on the page, and survives a message.
func TestFormatOptions(t *testing.T) {
	page := must.Get(os.ReadFile("../../docs/saver.md"))(t)
	_, section, _ := strings.Cut(string(page), "\n## Format options\n")
	for _, name := range formats.Writable() {
		f := must.Get(formats.ByName(name, nil))(t)
		v := reflect.New(reflect.TypeOf(f)).Elem()
		for field, x := range v.Fields() {
			switch x := x.Addr().Interface().(type) {
			case *bool:
				*x = true
			case *int:
				*x = 3
			case *int64:
				*x = 1 << 40
			case *string:
				*x = "a.pt"
			case *tensor.DType:
				*x = tensor.BFloat16
			default:
				continue // a saver process cannot use it
			}
			if !strings.Contains(section, "`"+optionName(field.Name)+"`") {
				t.Errorf("docs/saver.md lacks the option %s of %s", optionName(field.Name), name)
			}
		}
		want := v.Interface().(storage.Format)
		options, err := FormatOptions(want)
		if err != nil {
			t.Errorf("FormatOptions(%+v) = %v", want, err)
		}
		got, err := decodeFormat(name, options)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("decodeFormat(%s) = %+v, %v; want %+v", options, got, err, want)
		}
	}
	for _, text := range []string{`{"shards":1}`, `{"file_bytes":"a"}`, `[]`, `{"file_bytes":1.5}`, `{"FileBytes":1}`} {
		if _, err := decodeFormat(formats.Native, json.RawMessage(text)); !errors.Is(err, storage.ErrOptions) {
			t.Errorf("decodeFormat(native, %s) = %v; want ErrOptions", text, err)
		}
	}
	if _, err := FormatOptions(torchdcp.Format{Transforms: map[string]torchdcp.Transform{"x": nil}}); !errors.Is(err, storage.ErrOptions) {
		t.Errorf("FormatOptions = %v; want ErrOptions: functions cannot be sent", err)
	}
}
