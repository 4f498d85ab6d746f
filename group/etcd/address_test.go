package etcd_test

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/cairn-ckpt/cairn/group"
	"github.com/cairn-ckpt/cairn/group/etcd"
	"github.com/cairn-ckpt/cairn/group/tcp"
)

func TestParse(t *testing.T) {
	for address, want := range map[string]*etcd.Rendezvous{
		"etcd://a/job":      {Endpoints: []string{"a:2379"}, Job: "job"},
		"etcd://a:1,b/t/j":  {Endpoints: []string{"a:1", "b:2379"}, Job: "t/j"},
		"etcd://[::1]:1/j":  {Endpoints: []string{"[::1]:1"}, Job: "j"},
		"etcd://[::1],a/j":  {Endpoints: []string{"[::1]:2379", "a:2379"}, Job: "j"},
		"etcd://a/j?hold=1": {Endpoints: []string{"a:2379"}, Job: "j", Hold: true},
		"etcd://a/j%2Fk%25": {Endpoints: []string{"a:2379"}, Job: "j/k%"},
		"etcd://me:p%40@a:1,b:2/j?size=4&rank=3&ttl=5s": {
			Endpoints: []string{"a:1", "b:2"}, Job: "j", Username: "me", Password: "p@", Size: 4, Rank: new(3), TTL: 5 * time.Second,
		},
	} {
		got, err := etcd.Parse(address)
		if err != nil {
			t.Errorf("Parse(%q) = %v", address, err)
			continue
		}
		if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(etcd.Rendezvous{})); diff != "" {
			t.Errorf("Parse(%q): -want +got\n%s", address, diff)
		}
	}
	r, err := etcd.Parse("etcds://a/j")
	if err != nil || r.TLS == nil {
		t.Errorf("Parse of etcds = %v, %v; want TLS", r, err)
	}
}

func TestParseRefuses(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	for _, address := range []string{
		"", "etcd", "etcd:", "etcd://", "etcd:///j", "etcd://a", "etcd://a/", "http://a/j", "etcd://a,/j", "etcd://,a/j",
		"etcd://a:x/j", "etcd://a:0/j", "etcd://a:65536/j", "etcd://:1/j", "etcd://a:1:2/j", "etcd://::1/j", "etcd://a b/j",
		"etcd://a/j?size=0", "etcd://a/j?size=-1", "etcd://a/j?size=x", "etcd://a/j?size=9999999", "etcd://a/j?ttl=5", "etcd://a/j?ttl=-5s",
		"etcd://a/j?rank=x", "etcd://a/j?hold=x", "etcd://a/j?sice=4", "etcd://a/j#top", "etcd://a/%zz", "etcd://a/j?%zz",
		"etcd://a/j?ca=" + none, "etcds://a/j?ca=" + none, "etcds://a/j?cert=" + none, "etcds://a/j?key=" + none,
		"etcd://a/" + strings.Repeat("x", 257),
	} {
		if r, err := etcd.Parse(address); !errors.Is(err, group.ErrInvalid) {
			t.Errorf("Parse(%q) = %v, %v; want an invalid argument", address, r, err)
		}
	}
}

// A password is neither in errors nor in the printed address.
func TestPasswordIsNotShown(t *testing.T) {
	for _, address := range []string{"etcd://me:hush@a/j", "etcd://me:hush@a/", "etcd://me:hush%zz@a/j", "etcd://me:hush@a:x/j", "etcd://me:@hush@a/",
		"etcd://me:hush/es@a/j", "etcd://me:x?hush@a/j", "etcd://me:x/hush@a/j", "etcd:me:hush@a/j", "me:hush@a/j", "zookeeper://me:hush@a/j"} {
		r, err := etcd.ParseRendezvous(address)
		if s := fmt.Sprint(r, err); strings.Contains(s, "hush") {
			t.Errorf("ParseRendezvous(%q) shows %s", address, s)
		}
	}
}

func TestParseRendezvousOfAllSchemes(t *testing.T) {
	for address, want := range map[string]string{
		"": "*tcp.Env", "env://": "*tcp.Env", "file:///tmp/x": "*tcp.File", "etcd://a/j": "*etcd.Rendezvous", "etcds://a/j": "*etcd.Rendezvous",
	} {
		if got, err := etcd.ParseRendezvous(address); fmt.Sprintf("%T", got) != want || err != nil {
			t.Errorf("ParseRendezvous(%q) = %T, %v; want a %s", address, got, err, want)
		}
	}
	for _, address := range []string{"zookeeper://a/j", "etcd://a", "file://"} {
		var none tcp.Rendezvous
		if got, err := etcd.ParseRendezvous(address); got != none || !errors.Is(err, group.ErrInvalid) {
			t.Errorf("ParseRendezvous(%q) = %v, %v; want nil and an invalid argument", address, got, err)
		}
	}
}

// Rank 0 listens at the address from which it reaches the cluster.
func TestPlace(t *testing.T) {
	for endpoint, want := range map[string]string{
		"127.0.0.1:1": "127.0.0.1", "localhost:1": "127.0.0.1", "http://127.0.0.1:1": "127.0.0.1", "unix:///x": "127.0.0.1",
	} {
		got, err := (&etcd.Rendezvous{Endpoints: []string{endpoint}}).Place()
		host, port, _ := net.SplitHostPort(got)
		if ip := net.ParseIP(host); err != nil || port != "0" || host != want && !ip.IsLoopback() {
			t.Errorf("Place with etcd at %s = %q, %v; want %s", endpoint, got, err, want)
		}
	}
	if got, err := (&etcd.Rendezvous{Endpoints: []string{"127.0.0.1:none"}}).Place(); err == nil {
		t.Errorf("Place with etcd nowhere = %q; want an error", got)
	}
}

// FuzzParse: a valid address can be written and read again.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"etcd://a/job", "etcd://me:p%40@a:1,[::1]:2/j?size=4&rank=3&ttl=5s", "etcds://a/j%2F", "etcd://a:1:2/j", "etcd://@/?#"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		r, err := etcd.Parse(address)
		if err != nil {
			return
		}
		again := fmt.Sprintf("etcd://%s/%s", strings.Join(r.Endpoints, ","), url.PathEscape(r.Job))
		s, err := etcd.Parse(again)
		if err != nil || s.Job != r.Job || !cmp.Equal(s.Endpoints, r.Endpoints) {
			t.Errorf("Parse(%q) = %v, %v; want %v", again, s, err, r)
		}
	})
}
