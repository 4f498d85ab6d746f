package etcd_test

import (
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"

	"github.com/cairn-ckpt/cairn/group/etcd"
	"github.com/cairn-ckpt/cairn/group/tcp"
	"github.com/cairn-ckpt/cairn/internal/must"
)

// securedCluster starts an etcd that is reached over TLS and lets only a user in who
// may touch cairn's keys and no others. It returns the cluster's address, and the authority of its certificate.
func securedCluster(t *testing.T) (endpoint, ca string) {
	t.Helper()
	dir := t.TempDir()
	server, err := startServer(dir, func(cfg *embed.Config) {
		cfg.ListenClientUrls[0].Scheme, cfg.AdvertiseClientUrls[0].Scheme = "https", "https"
		cfg.ClientAutoTLS, cfg.SelfSignedCertValidity = true, 1
		cfg.BcryptCost = 4 // quick
	})
	must.Do(t, err)
	t.Cleanup(server.Close)
	endpoint = server.Clients[0].Addr().String()
	ca = filepath.Join(dir, "fixtures", "client", "cert.pem")
	r, err := etcd.Parse(fmt.Sprintf("etcds://%s/x?ca=%s", endpoint, url.QueryEscape(ca)))
	must.Do(t, err)
	c, err := clientv3.New(clientv3.Config{Endpoints: r.Endpoints, TLS: r.TLS})
	must.Do(t, err)
	defer c.Close()
	allow(t, c, "root", "of all", "")
	allow(t, c, "rank", "hush", "cairn/")
	if _, err := c.AuthEnable(soon(t)); err != nil {
		t.Fatal(err)
	}
	return endpoint, ca
}

// allow makes a user that may use keys that begin with prefix; root may use all.
func allow(t *testing.T, c *clientv3.Client, user, password, prefix string) {
	t.Helper()
	ctx := soon(t)
	_, err1 := c.RoleAdd(ctx, user)
	var err2 error
	if user != "root" {
		_, err2 = c.RoleGrantPermission(ctx, user, prefix, clientv3.GetPrefixRangeEnd(prefix), clientv3.PermissionType(clientv3.PermReadWrite))
	}
	_, err3 := c.UserAdd(ctx, user, password)
	_, err4 := c.UserGrantRole(ctx, user, user)
	must.Do(t, errors.Join(err1, err2, err3, err4))
}

func TestTLSAndPassword(t *testing.T) {
	endpoint, ca := securedCluster(t)
	address := func(who string) string {
		return fmt.Sprintf("etcds://%s@%s/job?size=2&ttl=5s&ca=%s", who, endpoint, url.QueryEscape(ca))
	}
	var cfgs []tcp.Config
	for range 2 {
		r, err := etcd.Parse(address("rank:hush"))
		must.Do(t, err)
		r.Getenv = noEnv
		cfgs = append(cfgs, config(r))
	}
	meet(t, cfgs...)
	r, err := etcd.Parse(address("rank:guess"))
	must.Do(t, err)
	r.Getenv = noEnv
	defer r.Close()
	if _, _, err := r.Slot(soon(t)); err == nil || !strings.Contains(err.Error(), "authentication failed") || strings.Contains(err.Error(), "guess") {
		t.Errorf("Slot with a wrong password = %v; want that it is wrong", err)
	}
}

// A client of the program's own stays open.
func TestRendezvousWithClientOfTheProgram(t *testing.T) {
	c := client(t)
	job := newJob(t)
	var cfgs []tcp.Config
	for range 2 {
		cfgs = append(cfgs, config(&etcd.Rendezvous{Client: c, Job: job, Size: 2, Getenv: noEnv}))
	}
	meet(t, cfgs...)
	if _, err := c.Get(t.Context(), "x"); err != nil {
		t.Errorf("Get with the client after the ranks have met = %v", err)
	}
}
