package host

// PretendHost makes p believe that it runs on another host.
func (p *Platform) PretendHost(name string) { p.host = name }
