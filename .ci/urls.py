"""Adds the project's URLs to a build on GitHub, which says in GITHUB_REPOSITORY where the project is. Other builds have none."""

import os

from hatchling.metadata.plugin.interface import MetadataHookInterface


class RepositoryUrls(MetadataHookInterface):
    """The hook that `[tool.hatch.metadata.hooks.custom]` in pyproject.toml names."""

    def update(self, metadata: dict[str, object]) -> None:
        """Set `urls` if the repository is known."""
        repository = os.environ.get("GITHUB_REPOSITORY")
        if not repository:
            return
        home = f"{os.environ.get('GITHUB_SERVER_URL', 'https://github.com')}/{repository}"
        metadata["urls"] = {
            "Homepage": home,
            "Documentation": f"{home}/tree/main/plan_adapter/guide",
            "Changelog": f"{home}/blob/main/CHANGELOG.md",
            "Issues": f"{home}/issues",
        }
