package meta_test

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

func valid() *meta.Metadata {
	x := rows(2, 0, 3)
	x.Locs = []meta.Location{{File: "f", Length: 32}, {File: "f", Offset: 32}, {File: "g", Length: 48}}
	scalar := &meta.Tensor{Properties: meta.Properties{DType: tensor.Bool}, Chunks: []tensor.Box{{}}}
	return &meta.Metadata{
		Entries: []meta.Entry{
			{FQN: "a", Path: meta.Path{meta.Key("a")}, Bytes: &meta.Bytes{Codec: "raw", Inline: []byte{}}},
			{FQN: "a.0", Path: meta.Path{meta.Key("a"), meta.Pos(0)}, Tensor: scalar},
			{FQN: "b", Bytes: &meta.Bytes{Codec: "json", Size: 9, Loc: meta.Location{File: "f", Offset: 1, Length: 9}}},
			{FQN: "x", Tensor: x},
		},
		PlannerData: []byte(`{"k":[1]}`),
	}
}

func TestValidateAcceptsValidMetadata(t *testing.T) {
	for name, m := range map[string]*meta.Metadata{"nothing": {}, "something of each kind": valid()} {
		if err := m.Validate(); err != nil {
			t.Errorf("%s: Validate = %v", name, err)
		}
	}
}

func TestValidateReportsEachProblem(t *testing.T) {
	for text, spoil := range map[string]func(m *meta.Metadata){
		`"a" comes after "a.0"`:               func(m *meta.Metadata) { m.Entries[0], m.Entries[1] = m.Entries[1], m.Entries[0] },
		`"a" is there twice`:                  func(m *meta.Metadata) { m.Entries[1].FQN = "a" },
		`entry 0: invalid metadata: a na`:     func(m *meta.Metadata) { m.Entries[0].FQN = "" },
		`"b": want either a tensor or a valu`: func(m *meta.Metadata) { m.Entries[2].Bytes = nil },
		`"x": want either a tensor or a valu`: func(m *meta.Metadata) { m.Entries[3].Bytes = &meta.Bytes{} },
		`"x": invalid shape: box [2 0]+[`:     func(m *meta.Metadata) { m.Entries[3].Tensor.Chunks[2] = box([]int64{2, 0}, []int64{4, 4}) },
		`"x": invalid shape: box [0]+[5]`:     func(m *meta.Metadata) { m.Entries[3].Tensor.Chunks[0] = box([]int64{0}, []int64{5}) },
		`"x": invalid shape: negative di`:     func(m *meta.Metadata) { m.Entries[3].Tensor.Shape = []int64{-5, 4} },
		`"x": unsupported dtype`:              func(m *meta.Metadata) { m.Entries[3].Tensor.DType = 0 },
		`"x": 2 places for 3 chunks`:          func(m *meta.Metadata) { m.Entries[3].Tensor.Locs = m.Entries[3].Tensor.Locs[:2] },
		`"x": 0 places for 3 chunks`:          func(m *meta.Metadata) { m.Entries[3].Tensor.Locs = []meta.Location{} },
		`"x": at -1+48 in "g"`:                func(m *meta.Metadata) { m.Entries[3].Tensor.Locs[2].Offset = -1 },
		`"b": at 9223372036854775807+9 i`:     func(m *meta.Metadata) { m.Entries[2].Bytes.Loc.Offset = math.MaxInt64 },
		`"a": 1 bytes, 0 of them inline`:      func(m *meta.Metadata) { m.Entries[0].Bytes.Size = 1 },
		`"b": -1 bytes, 0 of them inline`:     func(m *meta.Metadata) { m.Entries[2].Bytes.Size = -1 },
		`"a.0": position -1 in its path`:      func(m *meta.Metadata) { m.Entries[1].Path[1].Pos = -1 },
		`"a.0": a position that is a key`:     func(m *meta.Metadata) { m.Entries[1].Path[1].Int = true },
		`"a.0": key "a" in its path, whi`:     func(m *meta.Metadata) { m.Entries[1].Path[0].Int = true },
		`planner data is not JSON`:            func(m *meta.Metadata) { m.PlannerData = []byte("{") },
	} {
		m := valid()
		spoil(m)
		if err := m.Validate(); !errors.Is(err, meta.ErrInvalid) || !strings.Contains(err.Error(), text) {
			t.Errorf("Validate = %v; want %s", err, text)
		}
	}
}

func TestValidateReportsAllProblems(t *testing.T) {
	m := valid()
	m.Entries[0].FQN, m.Entries[0].Bytes.Size = "c", 3
	m.Entries[3].Tensor.Chunks[0].Sizes = []int64{9, 4}
	m.Entries[3].Tensor.Chunks[2].Sizes = []int64{9, 4}
	err := m.Validate()
	for _, text := range []string{`"a.0" comes after "c"`, `"c": 3 bytes`, "box [0 0]+[9 4]", "box [2 0]+[9 4]"} {
		if err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("Validate = %v; want also %s", err, text)
		}
	}
	m = &meta.Metadata{}
	for i := range 25 {
		m.Entries = append(m.Entries, meta.Entry{FQN: fmt.Sprintf("%02d", i)})
	}
	err = m.Validate()
	if err == nil || !strings.Contains(err.Error(), `"19": want either`) || strings.Contains(err.Error(), `"20"`) || !strings.HasSuffix(err.Error(), "; and 5 more") {
		t.Errorf("Validate = %v; want twenty problems and five more", err)
	}
}
