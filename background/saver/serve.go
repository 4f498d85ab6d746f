// Package saver saves in the background. A [Runner] runs saves one after another. A
// [Process] is a saver process as its trainer sees it, and [Serve] is the work of that
// process: it shares memory with the trainer, and it completes a save even if the trainer
// ends. docs/saver.md specifies the messages between the two. The package does not copy
// states: that is the work of package stage.
package saver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"time"

	"github.com/cairn-ckpt/cairn/background/memory"
	"github.com/cairn-ckpt/cairn/background/stage"
	"github.com/cairn-ckpt/cairn/blob"
	_ "github.com/cairn-ckpt/cairn/blob/file" // opens paths
	"github.com/cairn-ckpt/cairn/blob/ram"
	"github.com/cairn-ckpt/cairn/run"
	"github.com/cairn-ckpt/cairn/storage"
)

// orphanTime bounds how long a saver works after its trainer has gone.
const orphanTime = 30 * time.Minute

// errTrainerGone fails a save if its trainer ends before the state is staged.
var errTrainerGone = errors.New("the trainer has ended before its state was staged")

// ServeOptions change how a saver works. Nil means the defaults.
type ServeOptions struct {
	// Logger receives the events of saves, repeated requests, and the end of the trainer.
	// Nil: Serve does not log; Run logs to standard error as text.
	Logger *slog.Logger
	// OpenStore opens the store of a save or a load by its address: a path or a URL. Nil:
	// blob.OpenAddress.
	OpenStore func(address string) (blob.Store, error)
	// OpenAs returns the form of c, a checkpoint at the root of store, that a recipe
	// describes. It closes c if it returns an error. Nil: loads through a recipe fail,
	// because this package knows no recipes.
	OpenAs func(ctx context.Context, store blob.Store, c storage.Checkpoint, r *Recipe) (storage.Checkpoint, error)

	// Export is the command that carries out exports; see Exporter.Command.
	Export []string

	// openFolder opens the store of a save without a request, because the saver handles no
	// other message meanwhile. Nil: OpenStore.
	openFolder func(address string) (blob.Store, error)
}

// withDefaults returns the options in effect. Stores of runs in memory call check before they are changed.
func (o *ServeOptions) withDefaults(check func(run string) error) ServeOptions {
	var out ServeOptions
	if o != nil {
		out = *o
	}
	if out.Logger == nil {
		out.Logger = slog.New(slog.DiscardHandler)
	}
	if out.OpenStore == nil {
		ctx := ram.WithCheck(blob.WithLogger(context.Background(), out.Logger), check)
		out.OpenStore = func(address string) (blob.Store, error) { return blob.OpenAddress(ctx, address) }
		out.openFolder = func(address string) (blob.Store, error) { return blob.OpenFolder(ctx, address) }
	}
	return out
}

// server is a saver process: the connection to its trainer, and the parts that handle messages.
type server struct {
	*scope
	peers    *peers
	saves    *saves
	memories *memories
	loads    *loads
	runs     *trainings
	tasks    *tasks
}

// newServer returns a server that works until ctx ends.
func newServer(ctx context.Context, conn net.Conn, mem []byte, opts *ServeOptions) *server {
	m := &memories{jobs: map[string]*memory.Job{}}
	ctx = ram.WithCheck(ctx, m.check)
	sc := &scope{
		ServeOptions: opts.withDefaults(m.check), mem: mem,
		link: &link{outbox: newOutbox(conn, errTrainerGone), handlers: map[string]func(*frame) error{}},
	}
	sc.ctx, sc.cancel = context.WithCancelCause(ctx)

	s := &server{scope: sc, peers: &peers{scope: sc}, memories: m}
	s.tasks = &tasks{scope: sc, running: map[uint64]context.CancelCauseFunc{}, held: map[uint64]func(){}}
	s.runs = &trainings{scope: sc, tasks: s.tasks, savedTo: map[string]*savedRun{}, followed: map[string]*run.Run{}}
	m.scope, m.peers, m.tasks = sc, s.peers, s.tasks
	s.saves = newSaves(ctx, sc, s.peers, s.runs, s.memories)
	s.memories.tended = s.saves.runner.WaitTended
	s.loads = &loads{scope: sc, peers: s.peers, runs: s.runs, tasks: s.tasks, opened: map[string]*opened{}}
	s.registerAll()
	return s
}

// registerAll says which part handles which message. hello may have unknown fields, because it may
// come from another version.
func (s *server) registerAll() {
	register(s.link, typeHello, false, s.hello)
	register(s.link, typeListen, true, s.peers.listen)
	register(s.link, typeJoin, true, s.peers.join)
	register(s.link, typeSave, true, s.saves.save)
	register(s.link, typeStaged, true, s.saves.staged)
	register(s.link, typeAbandon, true, s.saves.abandon)
	register(s.link, typeFetched, true, s.saves.window.fetched)
	register(s.link, typeDrop, true, s.saves.drop)
	register(s.link, typeLoad, true, s.loads.load)
	register(s.link, typeDescribe, true, s.loads.describe)
	register(s.link, typeNewest, true, s.runs.newest)
	register(s.link, typeMemory, true, s.memories.join)
	register(s.link, typeCancel, true, s.tasks.cancelTask)
}

// Serve is the work of a saver process: it talks to the trainer at conn until the trainer
// has closed it, finishes the saves that are staged, and returns. arena is the memory file
// of the trainer.
//
// If the trainer sends something that is not a message, or one that makes no sense, the
// error wraps ErrMessage, and no further checkpoint is published. If
// arena cannot be used, the error wraps stage.ErrArena. If ctx ends, everything is
// cancelled, and the error is its cause.
func Serve(ctx context.Context, conn net.Conn, arena *os.File, opts *ServeOptions) error {
	mem, err := stage.MapFile(arena)
	if err != nil {
		return err
	}
	defer stage.Unmap(mem)

	s := newServer(ctx, conn, mem, opts)
	defer s.cancel(context.Canceled)
	defer s.saves.stop(context.Canceled)
	defer context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Now()) })()

	err = s.link.listen()
	refused := errors.Is(err, ErrMessage)
	if refused {
		s.cancel(err)
		s.saves.refuse(err)
		s.link.refuse(err)
	} else {
		s.link.close(0) // it does not wait for a trainer that does not read
	}
	s.finish(err)

	switch {
	case refused:
		return err
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return nil // the trainer has gone
}

// hello checks the version of the trainer's messages.
func (s *server) hello(b *helloBody) error {
	if b.Version != messageVersion {
		return fmt.Errorf("%w: the trainer speaks version %d of the messages, this saver version %d", ErrMessage, b.Version, messageVersion)
	}
	s.link.send(typeReady, readyBody{Version: messageVersion, PID: os.Getpid()})
	return nil
}

// finish ends the work after the trainer has gone: saves that are staged complete, and
// everything else fails.
func (s *server) finish(err error) {
	timer := time.AfterFunc(orphanTime, func() { s.cancel(fmt.Errorf("%w: %v after the trainer", context.DeadlineExceeded, orphanTime)) })
	defer timer.Stop()

	pending := s.saves.end(err)
	s.logEnd(err, pending)
	s.tasks.end()
	if pending == 0 && s.peers.asked() && s.saves.runner.Uploads() == 0 {
		s.cancel(errTrainerGone) // savers that wait for each other
	}

	s.saves.runner.Wait()
	s.work.Wait()
	s.saves.waitTended()
	s.saves.waitExported()
	s.runs.close()
	s.peers.leave() // the other savers must not wait for this one while it serves files
	s.memories.close()
}

// logEnd logs that the conversation with the trainer is over.
func (s *server) logEnd(err error, pending int) {
	attrs := []slog.Attr{slog.Int("saves", pending), slog.Int("uploads", s.saves.runner.Uploads())}
	if g, _ := s.peers.groups(); g != nil {
		attrs = append(attrs, slog.Int("rank", g.Rank()))
	}
	level, text := slog.LevelInfo, "saver: the trainer has ended"
	if errors.Is(err, ErrMessage) {
		level, text, attrs = slog.LevelError, "saver: refused", append(attrs, slog.String("error", err.Error()))
	}
	s.Logger.LogAttrs(context.Background(), level, text, attrs...)
}
