/**
 * Where the frames of a request go. The endpoint gives one for each connection; a run only knows this face.
 */
export interface Channel {
  /**
   * Sends one line, given with its LF. Resolves when at most OUTPUT_BUFFER_MAX bytes, or this one line, are waiting; a peer
   * that is gone swallows everything. Never rejects. session-abi 3.6
   */
  send(line: string): Promise<void>
  /** False once the peer is gone: closed both ways, or took no byte for 30 s. A half-closed peer is not gone. */
  readonly isOpen: boolean
  /** Calls `fn` once when the peer goes; at once when it is gone already. Returns the function that forgets it. */
  onGone(fn: () => void): () => void
  /** Resolves when everything sent has been taken by the kernel, or the peer is gone. */
  flush(): Promise<void>
}
