package blob_test

import (
	"context"
	"fmt"

	"github.com/cairn-ckpt/cairn/blob"
	"github.com/cairn-ckpt/cairn/blob/mem"
)

// An object becomes visible only with Commit.
func ExampleStore() {
	ctx := context.Background()
	s := new(mem.Store)

	w, err := s.Create(ctx, "run/step1", &blob.CreateOptions{IfAbsent: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer w.Abort() // does nothing once committed
	if err := w.WriteAt(ctx, []byte("hello"), 0); err != nil {
		fmt.Println(err)
		return
	}
	_, err = s.Stat(ctx, "run/step1")
	fmt.Println("before:", err)
	if _, err := w.Commit(ctx); err != nil {
		fmt.Println(err)
		return
	}
	for info, err := range s.List(ctx, "run/") {
		fmt.Println("after:", info.Name, info.Size, err)
	}
	// Output:
	// before: stat "run/step1" in mem://: file does not exist
	// after: run/step1 5 <nil>
}
