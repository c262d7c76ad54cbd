"""Django's tasks on Pelton: the backend ``pelton.contrib.django.backend.PeltonBackend``, and a command for workers.

Add ``pelton.contrib.django`` to ``INSTALLED_APPS`` for the command ``manage.py pelton_worker``.
"""
