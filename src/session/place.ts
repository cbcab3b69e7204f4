/** Where the sessions of one agent or model lie: `.../session` on the durable tree, never through a mount (session-abi 5, 7). */
export interface Place {
  /** Absolute path of the directory `session`, free of symlinks. It may not exist yet. */
  dir: string
  scope: "private" | "shared"
  /** Name of the space, exactly with scope `shared`. */
  shared?: string
  /** Owner and group of everything made here. The process is root or this uid already. */
  uid: number
  gid: number
}

/** `client` of every session that this product makes (session-abi 9). */
export const PRODUCT_CLIENT = "ctx"
