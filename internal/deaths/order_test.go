//go:build unix

package deaths

// Ways to go. A rank that is cut off lives on, and so does one that was stopped
// and goes on later: they must come to an error too.
const (
	byKill  = "kill"
	byStop  = "stop"
	byCut   = "cut"
	byLeave = "leave"
)

var ways = []string{byKill, byStop, byCut, byLeave}

// What the ranks do when one of them goes.
const (
	opSave  = "save"
	opLoad  = "load"
	opShare = "share" // a load in which ranks read for each other
)

// order is what a rank is told to do, as a line of JSON.
type order struct {
	Meet string // the file by which the ranks meet
	Dir  string // where the checkpoint is
	Rank int
	Op   string
	// At is where this rank goes, and How. Empty: it does not.
	At, How string
}

// outcome is what a rank says of it, as a line of JSON.
type outcome struct {
	Err string // empty where all went well
	// Gone says that the error wraps group.ErrGone; Ranks are those it names.
	Gone  bool
	Ranks []int
	// Uncertain says that the error wraps storage.ErrUncertain, Late that it
	// wraps context.DeadlineExceeded: nobody noticed anything.
	Uncertain, Late bool
}

// point is a place at which a rank can go.
type point struct {
	op, at string
	global bool // only the coordinator comes there
}

// points are the methods that a save and a load call, in their order: between
// any two of them a rank is inside of the protocol itself.
var points = []point{
	{opSave, "stateful.State", false},
	{opSave, "planner.SetUp", false},
	{opSave, "writer.SetUp", false},
	{opSave, "planner.LocalPlan", false},
	{opSave, "writer.PrepareLocalPlan", false},
	{opSave, "planner.GlobalPlan", true},
	{opSave, "writer.PrepareGlobalPlan", true},
	{opSave, "planner.FinishPlan", false},
	{opSave, "planner.Resolve", false},
	{opSave, "writer.HasWritten", false},
	{opSave, "writer.Finish", true},
	{opSave, "writer.HasFinished", true},
	{opLoad, "stateful.State", false},
	{opLoad, "reader.ReadMetadata", false},
	{opLoad, "planner.SetUp", false},
	{opLoad, "reader.SetUp", false},
	{opLoad, "planner.LocalPlan", false},
	{opLoad, "reader.PrepareLocalPlan", false},
	{opLoad, "planner.GlobalPlan", true},
	{opLoad, "reader.PrepareGlobalPlan", true},
	{opLoad, "planner.FinishPlan", false},
	{opLoad, "planner.ResolveTensor", false},
	{opLoad, "planner.CommitTensor", false},
	{opLoad, "reader.HasRead", false},
	{opLoad, "stateful.Load", false},
	{opShare, "planner.ResolveTensor", false},
	{opShare, "planner.CommitTensor", false},
	{opShare, "reader.HasRead", false},
}
