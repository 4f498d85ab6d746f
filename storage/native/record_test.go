package native

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cairn-ckpt/cairn/internal/crc32c"
	"github.com/cairn-ckpt/cairn/internal/must"
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/storage"
)

var sameRecord = cmpopts.IgnoreUnexported(record{})

func sampleRecord() *record {
	const id = "20261115t021530-3f9a2c7e"
	return &record{
		SaveID: id, Step: new(int64(12000)), Time: time.Date(2026, 11, 15, 2, 15, 30, 125e6, time.UTC), WorldSize: 2,
		Writer: "cairn 0.1", Tags: map[string]string{"run": "llama <7b> & \"co\"", "é": "\u2028"},
		PlannerData: json.RawMessage(`{"a":[1,2.50,"<x>"],"a b":null}`),
		Totals:      recordTotals{Tensors: 3, Values: 2, Chunks: 6, Bytes: 1 << 40},
		Files: []storage.File{
			{Name: indexFileName(id), Size: 400, CRC32C: 0x00c0ffee},
			{Name: DataFileName(id, 0, 0), Size: 1 << 39},
			{Name: DataFileName(id, 1, 0), Size: 1 << 39, CRC32C: 0xffffffff},
		},
	}
}

// smallRecord has only the fields that every record has.
func smallRecord() *record {
	return &record{SaveID: "s", Files: []storage.File{{Name: "s-index.cairn", Size: 68}}}
}

func TestRecordReadsAsWritten(t *testing.T) {
	for name, want := range map[string]*record{"full": sampleRecord(), "small": smallRecord(), "timeline": recordWithTimeline()} {
		t.Run(name, func(t *testing.T) {
			b, err := encodeRecord(want)
			if err != nil {
				t.Fatalf("encodeRecord = %v; want nil", err)
			}
			got, err := decodeRecord(b)
			if err != nil {
				t.Fatalf("decodeRecord = %v; want nil", err)
			}
			if diff := cmp.Diff(want, got, sameRecord); diff != "" {
				t.Errorf("decodeRecord(encodeRecord) (-want +got):\n%s", diff)
			}
			if n, ok := got.sizes[want.Files[0].Name]; n != want.Files[0].Size || !ok {
				t.Errorf("size of %q = %d, %v; want %d", want.Files[0].Name, n, ok, want.Files[0].Size)
			}
		})
	}
}

func TestEncodeRecordRefuses(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*record)
		want   string
	}{
		"a bad save id":           {func(r *record) { r.SaveID = "../x" }, "save_id"},
		"no files":                {func(r *record) { r.Files = nil }, "files: the first"},
		"another first file":      {func(r *record) { r.Files = r.Files[1:] }, "files: the first"},
		"the record as a file":    {func(r *record) { r.Files[1].Name = recordName }, "files[1]"},
		"a file twice":            {func(r *record) { r.Files[2] = r.Files[1] }, "files[2]"},
		"a file outside":          {func(r *record) { r.Files[1].Name = "../x" }, "files[1]: name"},
		"a negative size":         {func(r *record) { r.Files[1].Size = -1 }, "files[1]: size"},
		"a negative total":        {func(r *record) { r.Totals.Bytes = -1 }, "bytes: -1"},
		"a negative world":        {func(r *record) { r.WorldSize = -1 }, "world_size"},
		"an absurd world":         {func(r *record) { r.WorldSize = 1 << 40 }, "world_size"},
		"a tag that is not UTF-8": {func(r *record) { r.Tags["x"] = "\xff" }, "UTF-8"},
		"a writer not UTF-8":      {func(r *record) { r.Writer = "\xff" }, "UTF-8"},
		"planner data no JSON":    {func(r *record) { r.PlannerData = json.RawMessage("{") }, "JSON"},
		"a year beyond four":      {func(r *record) { r.Time = time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC) }, "time"},
	} {
		t.Run(name, func(t *testing.T) {
			r := sampleRecord()
			tc.change(r)
			_, err := encodeRecord(r)
			if !errors.Is(err, meta.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("encodeRecord = %v; want ErrInvalid with %q", err, tc.want)
			}
		})
	}
}

// sealRecord returns the file of a record value with a checksum that matches.
func sealRecord(value string) []byte {
	return wrapRecord(hexCRC(crc32c.Checksum([]byte(value))), []byte(value))
}

// recordWith returns a valid record value in which one member is replaced, or left out
// if text is empty, and more is added.
func recordWith(name, text, more string) string {
	members := []string{}
	for _, m := range [][2]string{
		{"format", `"cairn"`}, {"version", `1`}, {"save_id", `"s"`}, {"step", `5`}, {"time", `"2026-11-15T02:15:30Z"`},
		{"world_size", `1`}, {"writer", `"w"`}, {"totals", `{"tensors":0,"values":0,"chunks":0,"bytes":0}`},
		{"files", `[{"name":"s-index.cairn","size":68,"crc32c":"00000000"}]`},
	} {
		if m[0] == name {
			m[1] = text
		}
		if m[1] != "" {
			members = append(members, fmt.Sprintf("%q: %s", m[0], m[1]))
		}
	}
	if more != "" {
		members = append(members, more)
	}
	return "{" + strings.Join(members, ", ") + "}"
}

// hostileRecords are record files that no writer makes; all except text
// have a checksum that matches.
var hostileRecords = map[string]struct {
	file []byte
	want string
}{
	"nothing":                 {nil, "not a JSON object"},
	"a list":                  {[]byte(`[]`), "not a JSON object"},
	"no record":               {[]byte(`{"crc32c": "00000000"}`), "record: missing"},
	"no checksum":             {[]byte(`{"record": ` + recordWith("", "", "") + `}`), "around the record"},
	"a checksum in capitals":  {bytes.Replace(sealRecord(recordWith("step", "14", "")), crcOf("step", "14"), bytes.ToUpper(crcOf("step", "14")), 1), "does not match"},
	"a checksum as a number":  {[]byte(`{"crc32c": 0, "record": ` + recordWith("", "", "") + `}`), "does not match"},
	"a field beside":          {bytes.Replace(sealRecord(recordWith("", "", "")), []byte("\n}\n"), []byte(", \"x\": 1\n}\n"), 1), "around the record"},
	"text after the end":      {append(sealRecord(recordWith("", "", "")), '!'), "invalid character '!'"},
	"other white space":       {append(sealRecord(recordWith("", "", "")), '\n'), "around the record"},
	"not UTF-8":               {sealRecord(recordWith("writer", "\"\xff\"", "")), "UTF-8"},
	"a record of null":        {sealRecord("null"), "not a JSON object"},
	"a record of a number":    {sealRecord("1"), "not a JSON object"},
	"another format":          {sealRecord(recordWith("format", `"zarr"`, "")), `format "zarr"`},
	"no format":               {sealRecord(recordWith("format", "", "")), "format: missing"},
	"no version":              {sealRecord(recordWith("version", "", "")), "version: missing"},
	"a version of text":       {sealRecord(recordWith("version", `"1"`, "")), "version"},
	"a negative version":      {sealRecord(recordWith("version", `-1`, "")), "version: -1"},
	"a field twice":           {sealRecord(recordWith("", "", `"step": 6`)), `"step" twice`},
	"a field twice, escaped":  {sealRecord(recordWith("", "", `"\u0073tep": 6`)), `"step" twice`},
	"a field in capitals":     {sealRecord(recordWith("writer", "", `"Writer": "x"`)), "writer: missing"},
	"no save id":              {sealRecord(recordWith("save_id", "", "")), "save_id: missing"},
	"a save id of null":       {sealRecord(recordWith("save_id", "null", "")), "save_id: null"},
	"a save id that escapes":  {sealRecord(recordWith("save_id", `"../s"`, "")), "save_id"},
	"a step of a fraction":    {sealRecord(recordWith("step", "1.5", "")), "step"},
	"a step of an exponent":   {sealRecord(recordWith("step", "1e3", "")), "step"},
	"a step above an int64":   {sealRecord(recordWith("step", "9223372036854775808", "")), "step"},
	"a step of NaN":           {sealRecord(recordWith("step", "NaN", "")), "invalid character"},
	"a time without a zone":   {sealRecord(recordWith("time", `"2026-11-15T02:15:30"`, "")), "time"},
	"a time elsewhere":        {sealRecord(recordWith("time", `"2026-11-15T02:15:30+01:00"`, "")), "not a time in UTC"},
	"a negative world":        {sealRecord(recordWith("world_size", "-1", "")), "world_size: -1"},
	"an absurd world":         {sealRecord(recordWith("world_size", "4294967297", "")), "too large"},
	"tags of numbers":         {sealRecord(recordWith("", "", `"tags": {"a": 1}`)), "tags: a"},
	"tags of null":            {sealRecord(recordWith("", "", `"tags": null`)), "tags: not a JSON object"},
	"a tag twice":             {sealRecord(recordWith("", "", `"tags": {"a": "b", "a": "c"}`)), `"a" twice`},
	"no totals":               {sealRecord(recordWith("totals", "", "")), "totals"},
	"a negative total":        {sealRecord(recordWith("totals", `{"tensors":-1,"values":0,"chunks":0,"bytes":0}`, "")), "tensors: -1"},
	"no files":                {sealRecord(recordWith("files", "", "")), "files: missing"},
	"an empty list of files":  {sealRecord(recordWith("files", "[]", "")), "the first is not the index"},
	"files of an object":      {sealRecord(recordWith("files", "{}", "")), "files"},
	"a file of null":          {sealRecord(recordWith("files", "[null]", "")), "files[0]"},
	"an index of another":     {sealRecord(recordWith("files", `[{"name":"t-index.cairn","size":68,"crc32c":"00000000"}]`, "")), "the first is not the index"},
	"a file without a size":   {sealRecord(recordWith("files", `[{"name":"s-index.cairn","crc32c":"00000000"}]`, "")), "files[0]: size: missing"},
	"a negative file":         {sealRecord(recordWith("files", `[{"name":"s-index.cairn","size":-68,"crc32c":"00000000"}]`, "")), "files[0]: size: -68"},
	"a short checksum":        {sealRecord(recordWith("files", `[{"name":"s-index.cairn","size":68,"crc32c":"0"}]`, "")), "files[0]: crc32c"},
	"a checksum of no digits": {sealRecord(recordWith("files", `[{"name":"s-index.cairn","size":68,"crc32c":"+0000000"}]`, "")), "files[0]: crc32c"},
	"a file outside":          {sealRecord(recordWith("files", `[{"name":"s-index.cairn","size":68,"crc32c":"00000000"},{"name":"../x","size":1,"crc32c":"00000000"}]`, "")), "files[1]: name"},
	"a file twice":            {sealRecord(recordWith("files", `[{"name":"s-index.cairn","size":68,"crc32c":"00000000"},{"name":"s-index.cairn","size":68,"crc32c":"00000000"}]`, "")), "files[1]"},
	"deep nesting":            {sealRecord(recordWith("", "", `"planner_data": `+strings.Repeat("[", 20_000))), "depth"},
}

// crcOf returns the checksum of a record with that member.
func crcOf(name, text string) []byte {
	return []byte(hexCRC(crc32c.Checksum([]byte(recordWith(name, text, "")))))
}

func TestHostileRecordsAreRefused(t *testing.T) {
	for name, tc := range hostileRecords {
		t.Run(name, func(t *testing.T) {
			_, err := decodeRecord(tc.file)
			if !errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("decodeRecord(%.200s) = %v; want ErrCorrupt with %q", tc.file, err, tc.want)
			}
		})
	}
	if _, err := decodeRecord(make([]byte, maxRecordBytes+1)); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("decodeRecord of too much = %v; want ErrCorrupt", err)
	}
}

func TestDecodeRecordIgnoresUnknownFields(t *testing.T) {
	value := recordWith("totals", `{"tensors":0,"values":0,"chunks":0,"bytes":0,"new":1}`, `"new": {"x": [1]}, "planner_data": null`)
	r, err := decodeRecord(sealRecord(value))
	if err != nil {
		t.Fatalf("decodeRecord = %v; want nil", err)
	}
	if *r.Step != 5 || string(r.PlannerData) != "null" {
		t.Errorf("decodeRecord = step %d, planner data %q; want 5, null", *r.Step, r.PlannerData)
	}
}

func TestRecordWithoutAStep(t *testing.T) {
	r, err := decodeRecord(sealRecord(recordWith("step", "", "")))
	if err != nil || r.Step != nil {
		t.Fatalf("decodeRecord = step %v, %v; want no step", r.Step, err)
	}
	b, err := encodeRecord(r)
	if err != nil || bytes.Contains(b, []byte("step")) {
		t.Errorf("encodeRecord = %s, %v; want no step", b, err)
	}
}

func TestRecordOfAnotherVersionIsRefused(t *testing.T) {
	for name, tc := range map[string]struct{ file, want string }{
		"newer":                       {string(sealRecord(recordWith("version", "4", ""))), "version 4, this program reads 3: written by a newer cairn, upgrade"},
		"newer, all else has changed": {`{"seal": {"sha256": "…"}, "record": {"version": 4, "format": "cairn", "files": null}}`, "version 4"},
		"zero":                        {string(sealRecord(recordWith("version", "0", ""))), "version 0, this program reads 3"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := decodeRecord([]byte(tc.file))
			if !errors.Is(err, storage.ErrVersion) || errors.Is(err, storage.ErrCorrupt) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("decodeRecord = %v; want ErrVersion with %q", err, tc.want)
			}
		})
	}
}

// recordWithReferences returns a record of version 3.
func recordWithReferences() *record {
	r := sampleRecord()
	data := r.Files[1]
	r.Files[1] = storage.File{Name: deltaFileName(data.Name), Size: 77, CRC32C: 9}
	r.Tied = true
	r.Coded = []storage.Coded{{File: data, Stored: r.Files[1].Name}}
	r.Bases = []baseFolder{{"step-1", []storage.Reference{{Folder: "step-1", Name: "a-r00000-0.delta", Size: 5}, {Folder: "step-1", Name: "a-r00000-0.safetensors", Size: 6}}}}
	r.Hashes = []storage.File{{Name: DataFileName(r.SaveID, 1, 0)[:len(r.SaveID)+7] + "-0.delta", Size: 8, CRC32C: 10}}
	return r
}

func TestHostileReferencesAreRefused(t *testing.T) {
	for claim, change := range map[string]func(r *record){
		"a folder that is not beside":       func(r *record) { r.Bases[0].Folder = "../x" },
		"a folder below another":            func(r *record) { r.Bases[0].Folder = "x/y" },
		"a file that leaves its folder":     func(r *record) { r.Bases[0].Files[0].Name = "../x" },
		"a delta file that is not there":    func(r *record) { r.Files = r.Files[:1] },
		"another name of the delta file":    func(r *record) { r.Coded[0].Stored = r.Files[0].Name },
		"a data file that is stored twice":  func(r *record) { r.Files = append(r.Files, r.Coded[0].File) },
		"a data file of another name":       func(r *record) { r.Coded[0].Name = "x.safetensors" },
		"hashes of another name":            func(r *record) { r.Hashes[0].Name = "x" },
		"a negative size":                   func(r *record) { r.Coded[0].Size = -1 },
		"a needed folder that is elsewhere": func(r *record) { r.Chain.Needs[0].Folder = "../x" },
		"a needed folder of negative size":  func(r *record) { r.Chain.Needs[0].Bytes = -1 },
		"a negative number of saves":        func(r *record) { r.Chain.Referring = -1 },
	} {
		r := recordWithReferences()
		r.Chain = &chain{Referring: 2, Needs: []needed{{"step-0", 1 << 40}, {"step-1", 11}}}
		change(r)
		if _, err := encodeRecord(r); err == nil { // it decodes the bytes that it has encoded
			t.Errorf("%s: encodeRecord = nil; want an error", claim)
		}
	}
	if _, err := decodeRecord(sealRecord(recordWith("version", "3", `"tied": false, "coded": [], "bases": []`))); !errors.Is(err, storage.ErrCorrupt) {
		t.Errorf("version 3 without delta files: decodeRecord = %v; want ErrCorrupt", err)
	}
}

func TestRecordDetectsEveryChangedByte(t *testing.T) {
	b := must.Get(encodeRecord(sampleRecord()))(t)
	check := func(what string, mutant []byte) {
		t.Helper()
		if _, err := decodeRecord(mutant); !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrVersion) {
			t.Fatalf("%s: decodeRecord = %v; want ErrCorrupt or ErrVersion", what, err)
		}
	}
	for i := range b {
		for _, v := range []byte{b[i] ^ 1, b[i] ^ 2, b[i] ^ 4, b[i] ^ 8, b[i] ^ 16, b[i] ^ 32, b[i] ^ 64, b[i] ^ 128, ' ', '\n', '0', '"'} {
			if mutant := bytes.Clone(b); v != b[i] {
				mutant[i] = v
				check(fmt.Sprintf("byte %d to %q", i, v), mutant)
			}
		}
		check(fmt.Sprintf("the first %d bytes", i), b[:i])
	}
}

// FuzzDecodeRecord decodes arbitrary files, and their records with a correct checksum.
func FuzzDecodeRecord(f *testing.F) {
	b, err := encodeRecord(sampleRecord())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	if b, err = encodeRecord(recordWithTimeline()); err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	if b, err = encodeRecord(recordWithReferences()); err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	for _, tc := range hostileTimelines {
		if len(tc.text) < 2000 {
			f.Add(sealRecord(recordWith("", "", `"timeline": `+tc.text)))
		}
	}
	for _, tc := range hostileRecords {
		if len(tc.file) < 2000 {
			f.Add(tc.file)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		checkRecordDecode(t, b)
		if value, ok := parseJSON("", b).fields["record"]; ok {
			checkRecordDecode(t, sealRecord(string(value)))
		}
	})
}

// checkRecordDecode fails unless b is refused properly, or is a record that can
// be encoded and decoded again.
func checkRecordDecode(t *testing.T, b []byte) {
	r, err := decodeRecord(b)
	if err != nil {
		if !errors.Is(err, storage.ErrCorrupt) && !errors.Is(err, storage.ErrVersion) {
			t.Fatalf("decodeRecord(%q) = %v; want ErrCorrupt or ErrVersion", b, err)
		}
		return
	}
	again, err := encodeRecord(r)
	if err != nil {
		t.Fatalf("encodeRecord(decodeRecord(%q)) = %v; want nil", b, err)
	}
	back, err := decodeRecord(again)
	if err != nil {
		t.Fatalf("decodeRecord(encodeRecord(decodeRecord(%q))) = %v; want nil", b, err)
	}
	if diff := cmp.Diff(r, back, sameRecord, cmpopts.EquateEmpty()); diff != "" {
		t.Fatalf("decodeRecord(encodeRecord(decodeRecord(%q))) (-want +got):\n%s", b, diff)
	}
}

func BenchmarkDecodeRecord(b *testing.B) {
	r := sampleRecord()
	for i := range 10_000 {
		r.Files = append(r.Files, storage.File{Name: DataFileName(r.SaveID, 2+i, 0), Size: 1 << 30, CRC32C: uint32(i)})
	}
	out := must.Get(encodeRecord(r))(b)
	b.SetBytes(int64(len(out)))
	b.ReportAllocs()
	for b.Loop() {
		must.Get(decodeRecord(out))(b)
	}
}
