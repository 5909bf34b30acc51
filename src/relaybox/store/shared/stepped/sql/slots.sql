-- slot: now_once
{clock}

-- slot: ttl_ago
{clock} - {ttl}

-- slot: no_bytes
x''

-- slot: find_text
instr
