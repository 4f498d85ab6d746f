package group_test

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/grouptest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestSolo(t *testing.T) {
	grouptest.Run(t, func(*testing.T, int) []group.Group { return []group.Group{group.Solo()} },
		&grouptest.Options{Sizes: []int{1}})
}
