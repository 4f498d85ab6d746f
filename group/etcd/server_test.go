package etcd_test

import (
	"fmt"
	"net/url"
	"os"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.uber.org/goleak"
	"go.uber.org/zap"

	"github.com/cairn-ckpt/cairn/internal/must"
)

// server is the tests' etcd. It starts with the first test that needs it: its goroutines
// read os.Stderr, which the start of all tests may replace.
var server = sync.OnceValue(func() *embed.Etcd {
	dir, err := os.MkdirTemp("", "cairn-etcd-")
	if err != nil {
		panic(err)
	}
	s, err := startServer(dir, nil)
	if err != nil {
		panic(err)
	}
	started = true
	return s
})

// started says whether there is a server.
var started bool

// cluster returns where the tests' etcd listens: "host:port".
func cluster() string { return server().Clients[0].Addr().String() }

func TestMain(m *testing.M) {
	if address := os.Getenv(childVariable); address != "" {
		child(address)
		return
	}
	os.Exit(withServer(m))
}

// withServer runs the tests with a server, and looks for goroutines that they have
// left behind once it has gone.
func withServer(m *testing.M) int {
	before := goleak.IgnoreCurrent()
	code := m.Run()
	if started {
		server().Close()
		os.RemoveAll(server().Config().Dir)
	}
	if err := goleak.Find(before); err != nil && code == 0 {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	return code
}

// startServer starts an etcd of one member that keeps its data in dir.
func startServer(dir string, change func(*embed.Config)) (*embed.Etcd, error) {
	cfg := embed.NewConfig()
	cfg.Dir = dir
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.NewNop())
	cfg.TickMs, cfg.ElectionMs = 10, 100 // leases of a second
	cfg.UnsafeNoFsync = true
	free := url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = []url.URL{free}, []url.URL{free}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{free}, []url.URL{free}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	if change != nil {
		change(cfg)
	}
	server, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, nil
	case <-time.After(30 * time.Second):
		server.Close()
		return nil, fmt.Errorf("the server is not ready")
	}
}

// client returns a client of the tests' own.
func client(t *testing.T) *clientv3.Client {
	t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{cluster()}, Logger: zap.NewNop()})
	must.Do(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// contents returns all that is in etcd under a job's name.
func contents(t *testing.T, job string) map[string]string {
	t.Helper()
	res, err := client(t).Get(t.Context(), "cairn/"+url.PathEscape(job)+"/", clientv3.WithPrefix())
	must.Do(t, err)
	out := map[string]string{}
	for _, kv := range res.Kvs {
		out[string(kv.Key)] = string(kv.Value)
	}
	return out
}
