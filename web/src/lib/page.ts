// The view as a file, and its address for others.

/** The address of the view without the token: who opens it needs the token of their server. */
export function link(): string {
  return location.origin + location.pathname + location.hash;
}

/**
 * The view as it is now, as a page that needs neither the server nor a script: styles are part
 * of it, canvases are pictures, controls do not work. Names are text, as in the view, and the
 * page's policy forbids scripts and other files besides.
 */
export function snapshot(about: string): string {
  const page = document.implementation.createHTMLDocument(document.title);
  const body = page.importNode(document.body, true);
  const copies = [...body.querySelectorAll('*')];
  [...document.body.querySelectorAll('*')].forEach((e, i) => freeze(e, copies[i] as HTMLElement, page));
  for (const e of body.querySelectorAll('script, noscript, dialog, [data-live]')) e.remove();
  const foot = body.appendChild(page.createElement('footer'));
  foot.className = 'faint';
  foot.textContent = about;

  const width = document.documentElement.clientWidth;
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const rules = [...document.styleSheets].flatMap((s) => [...s.cssRules].map((r) => r.cssText));
  rules.push(`:root { color-scheme: ${dark ? 'dark' : 'light'} }`, `body { width: ${width}px; margin: 0 auto }`, 'footer { padding: 20px; overflow-wrap: anywhere }');
  return [
    '<!doctype html>',
    '<html lang="en"><head><meta charset="utf-8">',
    `<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:; form-action 'none'; base-uri 'none'">`,
    `<meta name="viewport" content="width=${width}">`,
    page.head.querySelector('title')!.outerHTML,
    // As text: a style element would belong to this page, and its policy refuses one.
    `<style>${rules.join('\n').replaceAll('<', '\\3c ')}</style></head>`,
    `${body.outerHTML}</html>\n`,
  ].join('\n');
}

/** Gives the copy of an element the state that the element has besides its attributes. */
function freeze(e: Element, copy: HTMLElement, page: Document): void {
  if (e instanceof HTMLCanvasElement) {
    const image = page.createElement('img');
    const style = getComputedStyle(e);
    for (const k of ['display', 'position', 'left', 'top', 'width', 'height'] as const) image.style[k] = style[k];
    image.src = e.toDataURL();
    image.alt = e.getAttribute('aria-label') ?? '';
    copy.replaceWith(image);
  } else if (e instanceof HTMLSelectElement) {
    const option = page.createElement('option');
    option.textContent = e.selectedOptions[0]?.textContent ?? '';
    copy.replaceChildren(option);
  } else if (e instanceof HTMLInputElement) {
    copy.setAttribute('value', e.value);
    copy.toggleAttribute('checked', e.checked);
  } else if (e instanceof HTMLAnchorElement) {
    copy.removeAttribute('href');
  }
  if (copy.matches('button, select, input')) copy.setAttribute('disabled', '');
  if (e.role === 'grid') still(e as HTMLElement, copy, page);
}

/** A table holds the rows in sight only, so the copy shows those. */
function still(e: HTMLElement, copy: HTMLElement, page: Document): void {
  copy.style.overflow = 'hidden';
  copy.style.height = `${e.offsetHeight}px`;
  (copy.lastElementChild as HTMLElement).style.marginTop = `${-e.scrollTop}px`;
  const rows = Number(e.getAttribute('aria-rowcount')) - 1;
  if (e.scrollHeight <= e.clientHeight) return;
  const note = page.createElement('p');
  note.className = 'faint';
  note.textContent = `The page has the rows that were in sight, of ${rows.toLocaleString('en-US')}.`;
  copy.after(note);
}
