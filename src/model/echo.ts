// `debug/echo`: answers with the last user text (`model-abi.md` 10.1).
import type { Driver, ModelEvent } from "./driver.js"
import { countTokens, playEvents, readLastTurn, usageEvent } from "./prompt.js"

/** Driver of `debug/echo`. */
export const echo: Driver = {
  call: c =>
    playEvents(c, function* (): Generator<ModelEvent> {
      const { text } = readLastTurn(c.messages)
      if (text !== "") {
        yield { type: "delta", text }
        yield { type: "message", content: [{ type: "text", text }] }
      }
      yield usageEvent(countTokens(text), countTokens(text))
    }),
}
