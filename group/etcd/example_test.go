package etcd_test

import (
	"context"
	"fmt"
	"time"

	"github.com/cairn-ckpt/cairn/group/etcd"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

// A process joins its job through etcd, which gives it its rank. On a real cluster
// the address is a flag or comes from the environment, as in
// "etcd://10.0.0.7:2379,10.0.0.8:2379/llama-70b?size=64", and CAIRN_SECRET is set.
func Example() {
	address := "etcd://" + cluster() + "/example?size=1" // cluster() is a host and port, "127.0.0.1:2379" say

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	meet, err := etcd.ParseRendezvous(address) // env:// and file:// do as well
	if err != nil {
		fmt.Println(err)
		return
	}
	g, err := tcp.Join(ctx, tcp.Config{Meet: meet, Job: "example"})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close()
	fmt.Printf("rank %d of %d\n", g.Rank(), g.Size())
	// Output: rank 0 of 1
}

// If slots are held, a job that is started twice by mistake runs once: the
// processes of the second one wait until the first has ended.
func Example_hold() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	meet := &etcd.Rendezvous{Endpoints: []string{cluster()}, Job: "once", Size: 1, Hold: true}
	defer meet.Release()
	g, err := tcp.Join(ctx, tcp.Config{Meet: meet})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer g.Close()

	ctx, cancel = context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	_, err = tcp.Join(ctx, tcp.Config{Meet: &etcd.Rendezvous{Endpoints: []string{cluster()}, Job: "once", Size: 1}})
	fmt.Println(err)
	// Output:
	// join: slot in job "once": a group of that name has met; processes that have not left: 1 (generation 1): slot is taken: context deadline exceeded
}
