// Access to the fields of a request frame, one method for each kind of field (`session-abi.md` 4).
import { CtxError } from "./error.js"
import type { JsonObject } from "./json.js"
import { isName, isSessionName, isUtf8Text, isWindowId } from "./name.js"

type Scope = "private" | "shared" | "temp"

/** Throws the `EINVAL` of a bad frame. */
export function refuseField(why: string): never {
  throw new CtxError("EINVAL", why)
}

/** True for a string of UTF-8 without NUL. */
export function isText(v: unknown): v is string {
  return typeof v === "string" && !v.includes("\0") && isUtf8Text(v)
}

/** The members of a frame: an absent one is `undefined`, any other is checked and throws `EINVAL` when it breaks its rule. */
export class Fields {
  readonly #o: JsonObject
  constructor(o: JsonObject) {
    this.#o = o
  }

  has(key: string): boolean {
    return Object.hasOwn(this.#o, key)
  }

  take<T>(key: string, is: (v: unknown) => boolean, rule: string): T | undefined {
    if (!this.has(key)) return undefined
    const value = this.#o[key]
    if (!is(value)) refuseField(`${key} must be ${rule}`)
    return value as T
  }

  need<T>(key: string, is: (v: unknown) => boolean, rule: string): T {
    const value = this.take<T>(key, is, rule)
    if (value === undefined) refuseField(`${key} is missing`)
    return value
  }

  name(key: string): string | undefined {
    return this.take(key, isName, "a name")
  }

  flag(key: string): boolean {
    return this.take(key, v => typeof v === "boolean", "true or false") ?? false
  }

  id(): string {
    return this.need("id", isName, "a name")
  }

  session(): string | undefined {
    return this.take("session", isSessionName, "a name other than index")
  }

  window(): string | undefined {
    return this.take("window", isWindowId, "32 lower-case hex digits")
  }

  place(isTempAllowed = false): { scope: Scope; shared?: string } {
    const scopes = isTempAllowed ? ["private", "shared", "temp"] : ["private", "shared"]
    const scope = this.take<Scope>("scope", v => scopes.includes(v as string), scopes.join(" or ")) ?? "private"
    const shared = this.name("shared")
    if (scope === "shared" && shared === undefined) refuseField("scope shared needs shared, the name of a space")
    if (scope !== "shared" && shared !== undefined) refuseField(`shared does not go with scope ${scope}`)
    return shared === undefined ? { scope } : { scope, shared }
  }
}
