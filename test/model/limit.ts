// The grammar of `limit`.
import t from "tap"
import { parseLimit } from "../../src/agent/window.js"

t.test("model.4 (parser) every cell of the table of 4.1 has its verdict", async t => {
  t.equal(parseLimit("unknown\n"), undefined)
  for (const text of ["1\n", "32768\n", "4294967295\n"]) t.equal(parseLimit(text), Number(text))
  const invalid = "0 00 01 +5 -5 5.0 5e3 0x5 4294967296 Unknown 5_000".split(" ").map(s => `${s}\n`)
  for (const text of [...invalid, " 5\n", "5 \n", "5\r\n", "5", "5\n6\n", "5\n\n", "", "unknown", "unknown\n\n"]) {
    t.throws(() => parseLimit(text), { code: "EINVAL" }, JSON.stringify(text))
  }
})
