// Keys of the by-cwd index.
import t from "tap"
import { cwdKey, fnv1a } from "../../src/abi/hash.js"

t.test("session.16 (FNV table) every cwd of the table has its key", async t => {
  t.equal(cwdKey("/"), "cwd-af63a24c860189fe")
  t.equal(cwdKey("/workspace"), "cwd-990e10b3394addcf")
  t.equal(cwdKey("/workspace/api"), "cwd-b01b17a03e5d31d0")
  t.equal(cwdKey("/home/agent"), "cwd-79799fb65de2e6ef")
  t.equal(cwdKey("/workspace/专案"), "cwd-26b7ecce6e020218")
})

t.test("the hash of nothing is the offset basis and 16 digits are always given", async t => {
  t.equal(fnv1a(""), "cbf29ce484222325")
  t.equal(fnv1a(Buffer.from("/workspace/专案")), "26b7ecce6e020218")
  for (let i = 0; i < 2000; i++) if (!/^[0-9a-f]{16}$/.test(fnv1a(String(i)))) t.fail(String(i))
})
