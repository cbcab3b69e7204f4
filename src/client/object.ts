// Sockets of objects by their object string.

import { lstatSync, readlinkSync } from "node:fs"
import type { Socket } from "node:net"
import { CtxError, codeOf } from "../abi/error.js"
import { isAlias, type ObjectName, parseObject } from "../abi/name.js"
import { aliasPath, modelPath } from "../abi/path.js"
import { openAgent } from "./agent.js"
import type { Places } from "./place.js"
import { openSocket } from "./socket.js"

/**
 * Connects to the socket of an object: `agent/NAME`, `model/PROVIDER/MODEL` or a model alias. Errors: EINVAL for
 * another word, EACCES for a tool (it has no socket), ENOENT, ECONNREFUSED, EHOSTDOWN. Implements ctx-coreutils 2.3, 4.
 */
export async function openObject(places: Places, word: string): Promise<Socket> {
  const alias = word.startsWith("model/") ? word.slice("model/".length) : ""
  if (isAlias(alias)) {
    const target = readlinkSync(aliasPath(alias, places.root))
    return openModel(places, target.split("/").slice(-2).join("/"), word)
  }
  const object: ObjectName = parseObject(word)
  if (object.class === "agent") return openAgent(places, object.name)
  if (object.class === "model") return openModel(places, object.name, word)
  throw new CtxError("EACCES", `${word} has no socket`, { hint: "ask an agent" })
}

async function openModel(places: Places, model: string, what: string): Promise<Socket> {
  const path = modelPath(model, undefined, places.root)
  try {
    return await openSocket(`${path}.sock`, what)
  } catch (error) {
    if (codeOf(error) !== "ENOENT" || lstatSync(path, { throwIfNoEntry: false }) === undefined) throw error
    throw new CtxError("ENOENT", `${what} has no socket`, { cause: error, hint: `ctx cat model/${model}.d/session` })
  }
}
