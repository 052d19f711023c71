"""The five roles of Stage II: policy, reference, reward retriever, rollout and reward.

Each is a plain class that knows nothing of Ray; :mod:`actors.launch` turns them into Ray actors with resources of their own.
Tests and single-process tools call the classes directly.
"""
