"""The requests and responses of the HTTP interface; pydantic checks them and writes the OpenAPI document from them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from serving.settings import ServeSettings

Query = Annotated[str, Field(min_length=1, pattern=r"\S", description="what a person wants done, in their words")]


def _whole(value: Any) -> Any:
    """13.0 is an integer to JSON Schema, and so to whoever reads the document."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Whole = Annotated[int, BeforeValidator(_whole)]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class SearchOptions(_Request):
    """What both kinds of search accept. The upper limits are the server's settings and stand in its OpenAPI document."""

    k: Whole = Field(10, ge=1, description="number of results")
    hybrid: bool = Field(False, description="fuse the vectors' ranking with BM25's")
    rerank: bool = Field(False, description="have the reranker reorder the first rerank_depth results")
    rerank_depth: Whole = Field(20, ge=1, description="results that the reranker reads")
    domain: str | None = Field(None, min_length=1, max_length=256, description="only skills of this domain")
    index: str | None = Field(
        None, min_length=1, max_length=256, description="name of an index; the first one otherwise"
    )


class SearchRequest(SearchOptions):
    """One request in, one ranking out."""

    query: Query


class BatchSearchRequest(SearchOptions):
    """Several requests with the same options."""

    queries: list[Query] = Field(min_length=1)


class Hit(BaseModel):
    """One skill of a ranking."""

    skill_id: str
    name: str
    description: str
    domain: str | None
    score: float = Field(description="what it is ranked by")
    scores: dict[str, float] = Field(
        description="by retriever: dense (cosine), bm25, fused, rerank; those that were asked"
    )


class SearchResponse(BaseModel):
    """A ranking, and which version of which index it comes from."""

    index: str
    version: str
    hits: list[Hit]
    took_ms: float


class BatchSearchResponse(BaseModel):
    """One ranking for each request, in order, all of one version of the index."""

    index: str
    version: str
    results: list[list[Hit]]
    took_ms: float


class SkillResponse(BaseModel):
    """A whole skill document."""

    index: str
    skill_id: str
    name: str
    description: str
    body: str
    metadata: dict[str, str]


class IndexDescription(BaseModel):
    """An index as it is served now; with several replicas, the newest version that one of them has."""

    name: str
    version: str
    n_skills: int
    model: str | None = Field(description="the encoder; null where the index is BM25 alone")
    kind: str
    built_at: str
    domains: dict[str, int]
    has_reranker: bool
    fusion_weight: float | None = Field(
        description="the hybrid's weight of the dense list; null: no hybrid search here"
    )
    default: bool


class IndexesResponse(BaseModel):
    """Every index that this server searches."""

    indexes: list[IndexDescription]


class ReplicaHealth(BaseModel):
    """One search replica and the version of every index that it has open."""

    replica: str
    versions: dict[str, str]


class HealthResponse(BaseModel):
    """Whether searches are answered now."""

    status: Literal["ready", "unavailable", "draining"]
    replicas: list[ReplicaHealth]
    waiting: int = Field(description="queries that wait for a replica")


class ReloadOutcome(BaseModel):
    """What one replica did with one index."""

    replica: str
    index: str
    version: str
    reloaded: bool


class ReloadResponse(BaseModel):
    """What every replica did with every index."""

    outcomes: list[ReloadOutcome]


class FieldError(BaseModel):
    """What is wrong with one field."""

    field: str
    message: str


class ErrorBody(BaseModel):
    """What is wrong and what would be accepted."""

    code: str = Field(description="a stable word for programs")
    message: str = Field(description="a sentence for people")
    field: str | None = None
    similar: list[str] = Field(description="names that exist and look like one that does not")
    details: list[FieldError]


class ErrorResponse(BaseModel):
    """The shape of every error."""

    error: ErrorBody


def add_limits(document: dict[str, Any], settings: ServeSettings) -> dict[str, Any]:
    """Write the server's own limits, and whether it wants a token, into an OpenAPI document made from these models.

    ``exceeded_limit`` enforces the limits, ``serving.gate`` the token.
    """
    schemas = document["components"]["schemas"]
    for name in ("SearchRequest", "BatchSearchRequest"):
        schemas[name]["properties"]["k"]["maximum"] = settings.max_k
        schemas[name]["properties"]["rerank_depth"]["maximum"] = settings.max_rerank_depth
    schemas["SearchRequest"]["properties"]["query"]["maxLength"] = settings.max_query_chars
    queries = schemas["BatchSearchRequest"]["properties"]["queries"]
    queries["maxItems"] = settings.max_queries
    queries["items"]["maxLength"] = settings.max_query_chars
    if settings.token_digests:
        document["components"]["securitySchemes"] = {"bearer": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"bearer": []}]
        document["paths"]["/healthz"]["get"]["security"] = []
    return document


def exceeded_limit(request: SearchOptions, queries: list[str], settings: ServeSettings) -> tuple[str, str] | None:
    """The first field beyond the server's settings and what would be accepted, or None."""
    if request.k > settings.max_k:
        return "k", f"k is {request.k}; expected 1 to {settings.max_k}"
    if request.rerank_depth > settings.max_rerank_depth:
        return "rerank_depth", f"rerank_depth is {request.rerank_depth}; expected 1 to {settings.max_rerank_depth}"
    if len(queries) > settings.max_queries:
        return "queries", f"{len(queries)} queries; expected 1 to {settings.max_queries}"
    for position, query in enumerate(queries):
        if len(query) > settings.max_query_chars:
            name = "query" if isinstance(request, SearchRequest) else f"queries.{position}"
            return name, f"{len(query)} characters; expected 1 to {settings.max_query_chars}"
    return None
