"""Gives a build the README and, on GitHub, the project's URLs: GITHUB_REPOSITORY says where the project is. Other builds have no URLs."""

import os
import re
from pathlib import Path

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(?P<picture>!?)(?P<title>\[[^\]]*\])\((?!https?:|#)(?P<path>[^)]+)\)")


class RepositoryUrls(MetadataHookInterface):
    """The hook that `[tool.hatch.metadata.hooks.custom]` in pyproject.toml names."""

    def update(self, metadata: dict[str, object]) -> None:
        """Set `readme`, and `urls` if the repository is known. Its links are then absolute: a package index has no other files."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        repository = os.environ.get("GITHUB_REPOSITORY")
        if repository:
            home = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}"
            text = LINK.sub(lambda link: absolute(link, home), text)
            metadata["urls"] = {
                "Homepage": home,
                "Documentation": f"{home}/tree/main/plan_adapter/guide",
                "Changelog": f"{home}/blob/main/CHANGELOG.md",
                "Issues": f"{home}/issues",
            }
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def absolute(link: re.Match[str], home: str) -> str:
    """Return the link or picture with an absolute address."""
    view = "raw" if link["picture"] else "blob"
    return f"{link['picture']}{link['title']}({home}/{view}/main/{link['path']})"
