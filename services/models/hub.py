"""Fetches a model directory from a model hub: weights, configuration and templates, never code."""

from pathlib import Path
from typing import Final

from services.models.errors import ModelDownloadError, ModelNameError
from services.models.progress import Progress, watched_folder

_WANTED: Final = ["*.safetensors", "*.json", "*.jinja"]
# Subfolders hold other formats of the same weights, and so do Mistral's consolidated files.
_UNWANTED: Final = ["*/*", "consolidated*"]


def fetch_snapshot(repository: str, cache_dir: Path, progress: Progress, endpoint: str | None = None) -> Path:
    """Returns the directory of the hub repository `org/name`, downloading what is not cached.

    A complete cached snapshot is used without asking the hub, so a start needs no network and the
    model does not change under a running deployment. `endpoint` replaces the hub's address.
    Raises ModelNameError if there is no such repository, ModelDownloadError for anything else.
    """
    try:
        # Imported late: only hub ids need the library.
        from huggingface_hub import snapshot_download  # pyright: ignore[reportUnknownVariableType]
        from huggingface_hub.errors import (
            GatedRepoError,
            HTTPError,  # pyright: ignore[reportPrivateImportUsage]
            RepositoryNotFoundError,
        )
        from huggingface_hub.utils import disable_progress_bars
    except ImportError as error:
        raise ModelDownloadError(
            f"cannot fetch {repository}: huggingface-hub is not installed; run `pip install huggingface-hub`"
        ) from error

    def download(*, is_cached: bool) -> Path:
        return Path(
            snapshot_download(
                repository,
                cache_dir=cache_dir,
                allow_patterns=_WANTED,
                ignore_patterns=_UNWANTED,
                local_files_only=is_cached,
                endpoint=endpoint,
            )
        )

    try:
        return download(is_cached=True)
    except (OSError, ValueError):
        pass  # Absent or incomplete: the download below tells what is wrong, if anything.
    disable_progress_bars()
    try:
        with watched_folder(cache_dir / f"models--{repository.replace('/', '--')}", repository, None, progress):
            return download(is_cached=False)
    except GatedRepoError as error:
        raise ModelDownloadError(
            f"cannot fetch {repository}: access is restricted; accept its terms on the hub and set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNameError(
            f"no local directory and no public hub repository {repository}; for a private one set HF_TOKEN"
        ) from error
    except (HTTPError, OSError, ValueError) as error:
        cause = next((line for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise ModelDownloadError(
            f"cannot fetch {repository}: {cause}; check the network, or name a local model directory"
        ) from error
