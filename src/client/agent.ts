// Requests of a client to one agent.

import { lstatSync } from "node:fs"
import type { Socket } from "node:net"
import { type ErrorCode, isErrnoName } from "../abi/errno.js"
import { CtxError, codeOf } from "../abi/error.js"
import { agentPath, agentSocketPath } from "../abi/path.js"
import { checkMounted, type Places, systemctlOf } from "./place.js"
import { openSocket, readLines, sendRequest } from "./socket.js"

/** One reply line as an object; `type` decides. */
export type ReplyFrame = { type?: unknown; [key: string]: unknown }

/** Where a request belongs: the session fields of session-abi 4. */
export interface RequestPlace {
  session?: string
  scope?: string
  shared?: string
}

/**
 * Connects to an agent's public socket. Errors: EHOSTDOWN (no mount), ENOENT (no such agent, or its socket leads
 * nowhere), ECONNREFUSED (nobody listens). Implements object-abi 6, ctx-coreutils 2.6.
 */
export async function openAgent(places: Places, agent: string): Promise<Socket> {
  checkMounted(places)
  const what = `agent/${agent}`
  try {
    return await openSocket(agentSocketPath(agent, places.root), what)
  } catch (error) {
    const hint = `${systemctlOf(places)} start cortexfs-agent@${agent}.socket`
    if (codeOf(error) === "ECONNREFUSED") {
      throw new CtxError("ECONNREFUSED", `${what}: nobody listens`, { cause: error, hint })
    }
    if (codeOf(error) !== "ENOENT") throw error
    const isThere = lstatSync(agentPath(agent, places.root), { throwIfNoEntry: false }) !== undefined
    if (!isThere) throw new CtxError("ENOENT", what, { cause: error, hint: "run ctx ls agent" })
    throw new CtxError("ENOENT", `${what} is not started`, { cause: error, hint })
  }
}

/**
 * Sends one request, closes the write side (no question can be answered any more) and yields each reply line with its
 * frame. `onOpen` is called when there is a connection, before anything is sent.
 * Errors: those of `openAgent`, EIO for a reply that is no JSON object or a broken connection.
 */
export async function* askAgent(
  places: Places,
  agent: string,
  request: object,
  onOpen?: () => void,
): AsyncGenerator<{ line: Buffer; frame: ReplyFrame }> {
  const socket = await openAgent(places, agent)
  onOpen?.()
  sendRequest(socket, request)
  socket.end()
  for await (const line of readLines(socket)) yield { line, frame: parseReply(line, `agent/${agent}`) }
}

/** The only reply of a request that has one. Errors: those of `askAgent`, that of an error frame, EIO without reply. */
export async function askOnce(places: Places, agent: string, request: object): Promise<ReplyFrame> {
  for await (const { frame } of askAgent(places, agent, request)) {
    if (frame.type === "error") throw frameError(places, frame, agent)
    return frame
  }
  throw new CtxError("EIO", `agent/${agent} closed the connection without a reply`, { hint: logHint(places, agent) })
}

/** The error an `error` frame of an agent reports, with a hint that names agent and session. */
export function frameError(places: Places, frame: ReplyFrame, agent: string, session?: string): CtxError {
  return replyError(frame, `agent/${agent}`, code => frameHint(places, code, agent, session))
}

/** The error an `error` frame of `what` reports; its code as it is when it is an errno name, else EIO. */
export function replyError(
  frame: ReplyFrame,
  what: string,
  hintOf: (code: ErrorCode) => string | undefined = () => undefined,
): CtxError {
  const code: ErrorCode = isErrnoName(frame.code) ? frame.code : "EIO"
  const text = typeof frame.message === "string" && frame.message !== "" ? frame.message : what
  const hint = hintOf(code)
  return new CtxError(code, text, hint === undefined ? {} : { hint })
}

/** Where the reason of a runtime's end is found. */
export function logHint(places: Places, agent: string): string {
  return `${systemctlOf(places)} status cortexfs-agent@${agent}`
}

function frameHint(places: Places, code: ErrorCode, agent: string, session: string | undefined): string | undefined {
  if (code === "EBUSY") return `add --wait, or ctx agent cancel ${agent}`
  if (code === "EIO") return `ctx agent session verify ${session === undefined ? agent : `${agent} ${session}`}`
  if (code === "EHOSTDOWN") return logHint(places, agent)
  if (code === "EACCES") return `only the owner of agent/${agent} may ask, within its policy and mounts`
  if (code === "ENOENT")
    return `check what it names; ctx agent status ${agent} and ctx agent session list ${agent} help`
  if (code === "EINTR") return `ctx agent resume ${agent} shows what was stored`
  return undefined
}

/** The object on a reply line of `what`. Errors: EIO when the line is no JSON object. */
export function parseReply(line: Buffer, what: string): ReplyFrame {
  try {
    const value: unknown = JSON.parse(line.toString("utf8"))
    if (typeof value === "object" && value !== null && !Array.isArray(value)) return value as ReplyFrame
  } catch {
    // Told below, with the object that sent it.
  }
  throw new CtxError("EIO", `${what} sent a line that is no frame`, { hint: `ctx connect ${what}` })
}
