package plan

import (
	"github.com/cairn-ckpt/cairn/meta"
	"github.com/cairn-ckpt/cairn/tensor"
)

// State is the state of one rank: names to values. A value is a
// *tensor.Tensor, a Checkpointable, a nested map (with string or integer keys)
// or list of values, or anything that package value can encode.
type State = map[string]any

// Checkpointable is a tensor of which each rank holds some boxes. Package
// shard's Tensor is one; a caller's own sharded type becomes one by these
// methods.
type Checkpointable interface {
	// GlobalShape returns the shape of the whole tensor, the same on all ranks.
	GlobalShape() []int64
	// DType returns the type of its elements, the same on all ranks.
	DType() tensor.DType
	// Boxes returns the boxes this rank holds. None: the rank holds nothing of
	// the tensor.
	Boxes() []tensor.Box
	// Part returns a view of box i's memory, shaped like the box. Reading fills
	// it. It may be called from several goroutines at once.
	Part(i int) (*tensor.Tensor, error)
}

// SaveSetup is what a planner learns at the start of a save.
type SaveSetup struct {
	State State
	// Storage describes the checkpoint to be.
	Storage    meta.Storage
	Rank, Size int
	// Coordinator is set on the rank that calls GlobalPlan.
	Coordinator bool
	// RankLocal means that the rank saves without the other ranks. GlobalPlan
	// receives the plan of this rank alone, and its chunks need not cover whole
	// tensors.
	RankLocal bool
}

// SavePlanner decides what is written by whom. The calls of one save come in
// the order of the methods: SetUp and LocalPlan on all ranks; GlobalPlan on the
// coordinator, with the plans of all ranks in their order; FinishPlan on all
// ranks with the rank's own result; Resolve at least once for each item of the
// finished plan.
//
// To change one thing, embed [DefaultSave] by value and override one method:
// rename the keys of the state in SetUp, the items' dtype in LocalPlan and their
// content in Resolve, the distribution in GlobalPlan.
type SavePlanner interface {
	SetUp(s SaveSetup) error
	LocalPlan() (*SavePlan, error)
	// GlobalPlan returns the final plan of each rank and the metadata of the
	// whole. It must be a deterministic function of its input.
	GlobalPlan(plans []*SavePlan) ([]*SavePlan, *meta.Metadata, error)
	FinishPlan(p *SavePlan) (*SavePlan, error)
	// Resolve returns the content of an item. It must be idempotent and safe
	// for concurrent use. A tensor may be any view, of the item's dtype and of
	// the shape of its box.
	Resolve(it *WriteItem) (Data, error)
}

// Optioned is a SavePlanner whose plans depend on options. Plans are reused (see
// [Cache]) only under equal options.
type Optioned interface {
	// PlanOptions identifies the options: equal strings, equal plans.
	PlanOptions() string
}

// LoadSetup is what a planner learns at the start of a load.
type LoadSetup struct {
	// State is what is to be filled: tensors, and a [Slot] for each other value.
	// The planner may replace it by a state with other names, or without some of
	// them. A value that the planner puts into the given map itself goes to the
	// caller's state too.
	State       State
	Metadata    *meta.Metadata
	Rank, Size  int
	Coordinator bool
	bound       bool // State has slots
}

// TensorReceiver hands out the memory that a box of a tensor is read into.
type TensorReceiver interface {
	// ResolveTensor returns the memory for the item's box: a tensor of the
	// item's lengths, of any dtype and any strides.
	ResolveTensor(it *ReadItem) (*tensor.Tensor, error)
	// CommitTensor is called with that tensor once it is filled and verified.
	CommitTensor(it *ReadItem, t *tensor.Tensor) error
}

// LoadPlanner decides what is read by whom and takes it. The calls of one load
// come in this order: SetUp and LocalPlan on all ranks; GlobalPlan on the
// coordinator; FinishPlan on all ranks; then for each item either LoadBytes, or
// ResolveTensor and CommitTensor in a pair, from several goroutines at once. To
// change one thing, embed [DefaultLoad] by value and override one method.
type LoadPlanner interface {
	SetUp(s LoadSetup) error
	LocalPlan() (*LoadPlan, error)
	GlobalPlan(plans []*LoadPlan) ([]*LoadPlan, error)
	FinishPlan(p *LoadPlan) (*LoadPlan, error)
	TensorReceiver
	// LoadBytes hands over the encoded bytes of a value.
	LoadBytes(it *ReadItem, codec string, data []byte) error
}
