import { ApiError, get, stream, type Params, type Progress } from './api';

/**
 * Work is a question to the server, its progress and its answer. A new question cancels the
 * one before; so does the end of the component that asked.
 */
export class Work<T> {
  result = $state.raw<T | undefined>();
  error = $state.raw<ApiError | undefined>();
  progress = $state.raw<Progress | undefined>();
  busy = $state(false);
  private running?: AbortController;

  /** Asks a question that is answered at once. keep shows the old answer meanwhile. */
  get(path: string, params: Params = {}, keep = false): Promise<void> {
    return this.run(keep, (signal) => get<T>(path, params, signal));
  }

  /** Asks a slow question. */
  stream(path: string, params: Params, keep = false): Promise<void> {
    return this.run(keep, (signal) =>
      stream<T>(path, params, signal, (p) => {
        if (!signal.aborted) this.progress = p;
      }),
    );
  }

  /** Cancels the question. */
  cancel(): void {
    this.running?.abort();
    this.running = undefined;
    this.busy = false;
    this.progress = undefined;
  }

  private async run(keep: boolean, ask: (signal: AbortSignal) => Promise<T>): Promise<void> {
    this.cancel();
    const mine = (this.running = new AbortController());
    this.busy = true;
    this.error = undefined;
    if (!keep) this.result = undefined;
    try {
      const r = await ask(mine.signal);
      if (this.running === mine) this.result = r;
    } catch (e) {
      if (this.running === mine && !mine.signal.aborted) {
        this.error = e instanceof ApiError ? e : new ApiError('internal', String(e));
      }
    } finally {
      if (this.running === mine) {
        this.busy = false;
        this.progress = undefined;
      }
    }
  }
}

/** Work that ends with the component. Call it while the component is set up. */
export function work<T>(): Work<T> {
  const w = new Work<T>();
  $effect(() => () => w.cancel());
  return w;
}
