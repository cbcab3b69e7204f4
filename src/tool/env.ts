import { CTX_ROOT, homePath, SANDBOX_CONTROL_SOCKET, SANDBOX_HOME } from "../abi/path.js"
import { AGENT_ABI } from "../abi/product.js"
import type { Agent } from "../store/agent.js"

/** How a tool is called; the value of `CTX_TOOL_MODE` (tool-policy-abi 3.1). */
export type ToolMode = "native" | "cli" | "raw"

/** What a payload is for; each kind has names of its own in its environment. */
export type Payload =
  | { kind: "step"; step: number; steps: number; window?: number }
  | { kind: "tool"; tool: string; mode: ToolMode }

/**
 * The whole environment of a payload: nothing else is in it, and nothing of the host's (agent-tool-security 8).
 * `window` is in tokens and left out when unknown. Pairs of the control `env` follow, whose bounds `readAgent` has judged;
 * host knobs among them do not.
 */
export function payloadEnv(agent: Agent, session: string, run: string, payload: Payload): Record<string, string> {
  const env: Record<string, string> = {
    CTX_ROOT,
    CTX_HOME: homePath(agent.owner),
    CTX_PATH: agent.path.join(":"),
    CTX_AGENT: agent.name,
    CTX_AGENT_SUBJECT: agent.subject,
    HOME: SANDBOX_HOME,
    USER: agent.name,
    LOGNAME: agent.name,
    PATH: "/usr/bin:/bin",
    LANG: "C.UTF-8",
    SHELL: "/usr/bin/bash",
    TERM: "xterm-256color",
    CTX_SESSION: session,
    CTX_RUN_ID: run,
    CTX_CONTROL_SOCKET: SANDBOX_CONTROL_SOCKET,
  }
  if (payload.kind === "tool") {
    env.CTX_TOOL_MODE = payload.mode
    env.CTX_AUTHORIZED_OBJECT = `tool/${payload.tool}`
  } else {
    env.CTX_AGENT_LAUNCH = AGENT_ABI
    env.CTX_AGENT_STEP = String(payload.step)
    env.CTX_AGENT_STEPS = String(payload.steps)
    env.CTX_AGENT_WARM = "1"
    if (payload.window !== undefined) {
      env.CTX_CONTEXT_WINDOW_TOKENS = String(payload.window)
      env.CTX_CONTEXT_WINDOW_CHARS = String(payload.window * 4)
    }
  }
  for (const [key, value] of agent.env) if (!/^(?:CTX_|LD_)/.test(key) && !Object.hasOwn(env, key)) env[key] = value
  return env
}
