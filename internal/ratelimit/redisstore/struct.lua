-- Members of logs are doubles, packed by Redis' own library. Where it is missing (miniredis) this stands in for it, for the
-- whole numbers from 0 to 2^53 that are packed here.
local struct = rawget(_G, 'struct') or {
  pack = function(_, ...)
    local bytes = {}
    for _, x in ipairs({ ... }) do
      for _ = 1, 8 do
        table.insert(bytes, string.char(x % 256))
        x = math.floor(x / 256)
      end
    end
    return table.concat(bytes)
  end,
  unpack = function(format, text)
    local all = {}
    for i = 1, #format - 1 do
      local x = 0
      for at = 8 * i, 8 * i - 7, -1 do x = x * 256 + string.byte(text, at) end
      all[i] = x
    end
    return unpack(all)
  end,
}
