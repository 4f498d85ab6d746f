/** The name without its last component; "" if it has one component only. */
export function parent(name: string): string {
  return name.includes('.') ? name.slice(0, name.lastIndexOf('.')) : '';
}

/** The layer of a name, as the server forms it: up to the first number, or without the last component. */
export function layer(name: string): string {
  return /^(?:[^]*?\.)??\d+(?=\.|$)/.exec(name)?.[0] ?? (parent(name) || name);
}

/** A pattern of the server for the names of a layer: a prefix, unless it has characters of patterns. */
export function ofLayer(layer: string): string {
  const escaped = layer.replace(/[*?[\\]/g, '\\$&');
  return escaped === layer ? layer : `${escaped}*`;
}
