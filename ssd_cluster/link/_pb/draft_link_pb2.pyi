from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_NONE: _ClassVar[Kind]
    KIND_COUPLED: _ClassVar[Kind]
    KIND_DELTA: _ClassVar[Kind]
    KIND_SPARSE: _ClassVar[Kind]
    KIND_DENSE: _ClassVar[Kind]

class Next(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NEXT_UNSPECIFIED: _ClassVar[Next]
    NEXT_NONE: _ClassVar[Next]
    NEXT_WAIT: _ClassVar[Next]
    NEXT_TOKENS: _ClassVar[Next]

class NackCode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    NACK_CODE_UNSPECIFIED: _ClassVar[NackCode]
    NACK_CODE_UNKNOWN: _ClassVar[NackCode]
    NACK_CODE_CONFLICT: _ClassVar[NackCode]
    NACK_CODE_GAP: _ClassVar[NackCode]
    NACK_CODE_EVICTED: _ClassVar[NackCode]
    NACK_CODE_BUSY: _ClassVar[NackCode]
    NACK_CODE_TOO_LONG: _ClassVar[NackCode]
    NACK_CODE_MISMATCH: _ClassVar[NackCode]
    NACK_CODE_BAD_TOKEN: _ClassVar[NackCode]
    NACK_CODE_DRAINING: _ClassVar[NackCode]
KIND_UNSPECIFIED: Kind
KIND_NONE: Kind
KIND_COUPLED: Kind
KIND_DELTA: Kind
KIND_SPARSE: Kind
KIND_DENSE: Kind
NEXT_UNSPECIFIED: Next
NEXT_NONE: Next
NEXT_WAIT: Next
NEXT_TOKENS: Next
NACK_CODE_UNSPECIFIED: NackCode
NACK_CODE_UNKNOWN: NackCode
NACK_CODE_CONFLICT: NackCode
NACK_CODE_GAP: NackCode
NACK_CODE_EVICTED: NackCode
NACK_CODE_BUSY: NackCode
NACK_CODE_TOO_LONG: NackCode
NACK_CODE_MISMATCH: NackCode
NACK_CODE_BAD_TOKEN: NackCode
NACK_CODE_DRAINING: NackCode

class ToDraft(_message.Message):
    __slots__ = ("hello", "open", "commit", "pull", "close", "ping", "attach")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    CLOSE_FIELD_NUMBER: _ClassVar[int]
    PING_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    open: Open
    commit: CommitBatch
    pull: Pull
    close: Close
    ping: Ping
    attach: Attach
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., open: _Optional[_Union[Open, _Mapping]] = ..., commit: _Optional[_Union[CommitBatch, _Mapping]] = ..., pull: _Optional[_Union[Pull, _Mapping]] = ..., close: _Optional[_Union[Close, _Mapping]] = ..., ping: _Optional[_Union[Ping, _Mapping]] = ..., attach: _Optional[_Union[Attach, _Mapping]] = ...) -> None: ...

class ToTarget(_message.Message):
    __slots__ = ("welcome", "opened", "blocks", "law", "nack", "load", "pong", "attached")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    BLOCKS_FIELD_NUMBER: _ClassVar[int]
    LAW_FIELD_NUMBER: _ClassVar[int]
    NACK_FIELD_NUMBER: _ClassVar[int]
    LOAD_FIELD_NUMBER: _ClassVar[int]
    PONG_FIELD_NUMBER: _ClassVar[int]
    ATTACHED_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    opened: Opened
    blocks: BlockBatch
    law: Law
    nack: Nack
    load: Load
    pong: Pong
    attached: Attached
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., opened: _Optional[_Union[Opened, _Mapping]] = ..., blocks: _Optional[_Union[BlockBatch, _Mapping]] = ..., law: _Optional[_Union[Law, _Mapping]] = ..., nack: _Optional[_Union[Nack, _Mapping]] = ..., load: _Optional[_Union[Load, _Mapping]] = ..., pong: _Optional[_Union[Pong, _Mapping]] = ..., attached: _Optional[_Union[Attached, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("protocol", "target_id", "incarnation", "tokenizer_hash", "vocabulary", "kinds", "trust_domain")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TARGET_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    KINDS_FIELD_NUMBER: _ClassVar[int]
    TRUST_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    target_id: str
    incarnation: int
    tokenizer_hash: str
    vocabulary: int
    kinds: _containers.RepeatedScalarFieldContainer[Kind]
    trust_domain: str
    def __init__(self, protocol: _Optional[int] = ..., target_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., tokenizer_hash: _Optional[str] = ..., vocabulary: _Optional[int] = ..., kinds: _Optional[_Iterable[_Union[Kind, str]]] = ..., trust_domain: _Optional[str] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("protocol", "draft_id", "incarnation", "model_hash", "tokenizer_hash", "vocabulary", "k_max", "max_context", "row_credit", "session_credit", "step_base_us", "step_per_row_us", "session_ttl_s", "trust_domain")
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    DRAFT_ID_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    MODEL_HASH_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_HASH_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_FIELD_NUMBER: _ClassVar[int]
    K_MAX_FIELD_NUMBER: _ClassVar[int]
    MAX_CONTEXT_FIELD_NUMBER: _ClassVar[int]
    ROW_CREDIT_FIELD_NUMBER: _ClassVar[int]
    SESSION_CREDIT_FIELD_NUMBER: _ClassVar[int]
    STEP_BASE_US_FIELD_NUMBER: _ClassVar[int]
    STEP_PER_ROW_US_FIELD_NUMBER: _ClassVar[int]
    SESSION_TTL_S_FIELD_NUMBER: _ClassVar[int]
    TRUST_DOMAIN_FIELD_NUMBER: _ClassVar[int]
    protocol: int
    draft_id: str
    incarnation: int
    model_hash: str
    tokenizer_hash: str
    vocabulary: int
    k_max: int
    max_context: int
    row_credit: int
    session_credit: int
    step_base_us: float
    step_per_row_us: float
    session_ttl_s: float
    trust_domain: str
    def __init__(self, protocol: _Optional[int] = ..., draft_id: _Optional[str] = ..., incarnation: _Optional[int] = ..., model_hash: _Optional[str] = ..., tokenizer_hash: _Optional[str] = ..., vocabulary: _Optional[int] = ..., k_max: _Optional[int] = ..., max_context: _Optional[int] = ..., row_credit: _Optional[int] = ..., session_credit: _Optional[int] = ..., step_base_us: _Optional[float] = ..., step_per_row_us: _Optional[float] = ..., session_ttl_s: _Optional[float] = ..., trust_domain: _Optional[str] = ...) -> None: ...

class Open(_message.Message):
    __slots__ = ("session", "epoch", "tokens", "kind", "temperature", "seed", "top_k", "top_p", "stop_ids", "max_len", "k", "rows", "priority", "lengths", "top_m", "saguaro_c", "saguaro_f")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    STOP_IDS_FIELD_NUMBER: _ClassVar[int]
    MAX_LEN_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    TOP_M_FIELD_NUMBER: _ClassVar[int]
    SAGUARO_C_FIELD_NUMBER: _ClassVar[int]
    SAGUARO_F_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    tokens: bytes
    kind: Kind
    temperature: float
    seed: int
    top_k: int
    top_p: float
    stop_ids: bytes
    max_len: int
    k: int
    rows: int
    priority: int
    lengths: bytes
    top_m: int
    saguaro_c: float
    saguaro_f: int
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., tokens: _Optional[bytes] = ..., kind: _Optional[_Union[Kind, str]] = ..., temperature: _Optional[float] = ..., seed: _Optional[int] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., stop_ids: _Optional[bytes] = ..., max_len: _Optional[int] = ..., k: _Optional[int] = ..., rows: _Optional[int] = ..., priority: _Optional[int] = ..., lengths: _Optional[bytes] = ..., top_m: _Optional[int] = ..., saguaro_c: _Optional[float] = ..., saguaro_f: _Optional[int] = ...) -> None: ...

class CommitBatch(_message.Message):
    __slots__ = ("session", "epoch", "from_len", "token_count", "tokens", "next", "k", "rows", "counter", "due_us", "deadline_us", "proposal_count", "proposal", "proposal_kind", "flags", "origin_block", "origin_branch", "origin_offset", "shard", "shards")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FROM_LEN_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    DUE_US_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_COUNT_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_KIND_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_BLOCK_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_BRANCH_FIELD_NUMBER: _ClassVar[int]
    ORIGIN_OFFSET_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    epoch: bytes
    from_len: bytes
    token_count: bytes
    tokens: bytes
    next: bytes
    k: bytes
    rows: bytes
    counter: bytes
    due_us: bytes
    deadline_us: bytes
    proposal_count: bytes
    proposal: bytes
    proposal_kind: bytes
    flags: bytes
    origin_block: bytes
    origin_branch: bytes
    origin_offset: bytes
    shard: bytes
    shards: bytes
    def __init__(self, session: _Optional[bytes] = ..., epoch: _Optional[bytes] = ..., from_len: _Optional[bytes] = ..., token_count: _Optional[bytes] = ..., tokens: _Optional[bytes] = ..., next: _Optional[bytes] = ..., k: _Optional[bytes] = ..., rows: _Optional[bytes] = ..., counter: _Optional[bytes] = ..., due_us: _Optional[bytes] = ..., deadline_us: _Optional[bytes] = ..., proposal_count: _Optional[bytes] = ..., proposal: _Optional[bytes] = ..., proposal_kind: _Optional[bytes] = ..., flags: _Optional[bytes] = ..., origin_block: _Optional[bytes] = ..., origin_branch: _Optional[bytes] = ..., origin_offset: _Optional[bytes] = ..., shard: _Optional[bytes] = ..., shards: _Optional[bytes] = ...) -> None: ...

class Pull(_message.Message):
    __slots__ = ("session", "epoch", "base_len", "k", "deadline_us")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_US_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    base_len: int
    k: int
    deadline_us: int
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., base_len: _Optional[int] = ..., k: _Optional[int] = ..., deadline_us: _Optional[int] = ...) -> None: ...

class Close(_message.Message):
    __slots__ = ("sessions",)
    SESSIONS_FIELD_NUMBER: _ClassVar[int]
    sessions: bytes
    def __init__(self, sessions: _Optional[bytes] = ...) -> None: ...

class Attach(_message.Message):
    __slots__ = ("channel", "backend", "key", "value", "capacity")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    CAPACITY_FIELD_NUMBER: _ClassVar[int]
    channel: int
    backend: str
    key: str
    value: bytes
    capacity: int
    def __init__(self, channel: _Optional[int] = ..., backend: _Optional[str] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ..., capacity: _Optional[int] = ...) -> None: ...

class Ping(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: int
    def __init__(self, token: _Optional[int] = ...) -> None: ...

class Pong(_message.Message):
    __slots__ = ("token",)
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    token: int
    def __init__(self, token: _Optional[int] = ...) -> None: ...

class Opened(_message.Message):
    __slots__ = ("session", "epoch", "have_len")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    HAVE_LEN_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    have_len: int
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., have_len: _Optional[int] = ...) -> None: ...

class BlockBatch(_message.Message):
    __slots__ = ("session", "epoch", "block_seq", "base_len", "fingerprint", "branch_count", "k", "t_star", "score", "flags", "token_count", "tokens")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BLOCK_SEQ_FIELD_NUMBER: _ClassVar[int]
    BASE_LEN_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    BRANCH_COUNT_FIELD_NUMBER: _ClassVar[int]
    K_FIELD_NUMBER: _ClassVar[int]
    T_STAR_FIELD_NUMBER: _ClassVar[int]
    SCORE_FIELD_NUMBER: _ClassVar[int]
    FLAGS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_COUNT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    session: bytes
    epoch: bytes
    block_seq: bytes
    base_len: bytes
    fingerprint: bytes
    branch_count: bytes
    k: bytes
    t_star: bytes
    score: bytes
    flags: bytes
    token_count: bytes
    tokens: bytes
    def __init__(self, session: _Optional[bytes] = ..., epoch: _Optional[bytes] = ..., block_seq: _Optional[bytes] = ..., base_len: _Optional[bytes] = ..., fingerprint: _Optional[bytes] = ..., branch_count: _Optional[bytes] = ..., k: _Optional[bytes] = ..., t_star: _Optional[bytes] = ..., score: _Optional[bytes] = ..., flags: _Optional[bytes] = ..., token_count: _Optional[bytes] = ..., tokens: _Optional[bytes] = ...) -> None: ...

class Law(_message.Message):
    __slots__ = ("session", "epoch", "fingerprint", "kind", "row_size", "ids", "probabilities", "channel", "transfer")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    ROW_SIZE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    TRANSFER_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    fingerprint: int
    kind: Kind
    row_size: bytes
    ids: bytes
    probabilities: bytes
    channel: int
    transfer: int
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., fingerprint: _Optional[int] = ..., kind: _Optional[_Union[Kind, str]] = ..., row_size: _Optional[bytes] = ..., ids: _Optional[bytes] = ..., probabilities: _Optional[bytes] = ..., channel: _Optional[int] = ..., transfer: _Optional[int] = ...) -> None: ...

class Attached(_message.Message):
    __slots__ = ("channel", "key", "value", "refusal")
    CHANNEL_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    channel: int
    key: str
    value: bytes
    refusal: str
    def __init__(self, channel: _Optional[int] = ..., key: _Optional[str] = ..., value: _Optional[bytes] = ..., refusal: _Optional[str] = ...) -> None: ...

class Nack(_message.Message):
    __slots__ = ("session", "epoch", "code", "have_len", "retry_after_ms", "detail")
    SESSION_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    HAVE_LEN_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    session: int
    epoch: int
    code: NackCode
    have_len: int
    retry_after_ms: int
    detail: str
    def __init__(self, session: _Optional[int] = ..., epoch: _Optional[int] = ..., code: _Optional[_Union[NackCode, str]] = ..., have_len: _Optional[int] = ..., retry_after_ms: _Optional[int] = ..., detail: _Optional[str] = ...) -> None: ...

class Load(_message.Message):
    __slots__ = ("row_credit", "session_credit", "queue_us", "step_us", "draining")
    ROW_CREDIT_FIELD_NUMBER: _ClassVar[int]
    SESSION_CREDIT_FIELD_NUMBER: _ClassVar[int]
    QUEUE_US_FIELD_NUMBER: _ClassVar[int]
    STEP_US_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    row_credit: int
    session_credit: int
    queue_us: int
    step_us: int
    draining: bool
    def __init__(self, row_credit: _Optional[int] = ..., session_credit: _Optional[int] = ..., queue_us: _Optional[int] = ..., step_us: _Optional[int] = ..., draining: _Optional[bool] = ...) -> None: ...
