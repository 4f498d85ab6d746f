package memory

import (
	"fmt"
	"net"
	"net/netip"
	"os"

	"github.com/cairn-ckpt/cairn/storage"
)

// NetVariable is the environment variable that chooses the network of the copies: the name of an
// interface, such as ib0, or a range of addresses, such as 10.1.0.0/16.
const NetVariable = "CAIRN_NET"

// listenAt returns the address of this host at which other hosts reach it: on the network that the
// environment chooses, or else the one from which toward is reached, an address of rank 0. Empty:
// all processes are on this host.
func listenAt(toward string) (netip.Addr, error) {
	if choice := os.Getenv(NetVariable); choice != "" {
		return chosen(choice)
	}
	if toward == "" {
		return netip.AddrFrom4([4]byte{127, 0, 0, 1}), nil
	}
	// A connection of UDP sends nothing: it only asks the routes of the system.
	c, err := net.Dial("udp", toward)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("which address of this host reaches %s: %w", toward, err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}

// chosen returns the first address of this host on the network that a user has chosen.
func chosen(choice string) (netip.Addr, error) {
	interfaces, err := net.Interfaces()
	if err != nil {
		return netip.Addr{}, err
	}
	in, cidrErr := netip.ParsePrefix(choice)
	for _, i := range interfaces {
		if cidrErr != nil && i.Name != choice {
			continue
		}
		addrs, err := i.Addrs()
		if err != nil {
			return netip.Addr{}, err
		}
		for _, a := range addrs {
			p, err := netip.ParsePrefix(a.String())
			if err != nil || p.Addr().IsLinkLocalUnicast() {
				continue
			}
			if addr := p.Addr().Unmap(); cidrErr != nil || in.Contains(addr) {
				return addr, nil
			}
		}
	}
	return netip.Addr{}, fmt.Errorf("%w: %s is %q, and this host has no interface of that name and no address in that range", storage.ErrOptions, NetVariable, choice)
}

// interfaceOf returns the name of the network interface that has an address, or "".
func interfaceOf(at netip.Addr) string {
	interfaces, _ := net.Interfaces() // the name is only for messages
	for _, i := range interfaces {
		addrs, _ := i.Addrs()
		for _, a := range addrs {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == at {
				return i.Name
			}
		}
	}
	return ""
}
