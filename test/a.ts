import t from 'tap'
t.test('spec.1 x', async t => { t.equal(1 as number, 1) })
